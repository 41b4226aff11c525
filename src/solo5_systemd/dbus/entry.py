"""Entry point of the services; imports the standard library only, so that a missing dependency can be reported."""

import sys
from contextlib import suppress
from importlib import import_module
from typing import cast

from solo5_systemd.base.dependencies import EXIT_CONFIG, dependency_error
from solo5_systemd.dbus.fdstore import notify


def run(module: str) -> int:
    """Import a service's module, run its `main`, and return the exit status.

    A missing dependency is reported by one line in the journal (sd-daemon(3)), by the unit's StatusText=, which clients
    read, and by an exit status of RestartPreventExitStatus=.
    """
    try:
        main = import_module(module).main
    except ImportError as error:
        missing = dependency_error(error)
        print(f"<3>{missing}", file=sys.stderr)
        with suppress(OSError):
            notify(f"STATUS={missing}")
        return EXIT_CONFIG
    return cast("int", main())
