"""The first function of a service's process: it needs no module that could be missing."""

import sys
from importlib import import_module
from typing import cast

from solo5_systemd.dependencies import LACKING, blamed


def run(module: str) -> int:
    """Import a service's module and run its `main`; the exit status.

    A missing dependency is one line in the journal (sd-daemon(3)), and an exit status after which systemd does not
    start the service again (RestartPreventExitStatus=).
    """
    try:
        main = import_module(module).main
    except ImportError as error:
        print(f"<3>{blamed(error)}", file=sys.stderr)
        return LACKING
    return cast("int", main())
