"""The first function of a service's process: it needs no module that could be missing."""

import os
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import cast

from solo5_systemd.dependencies import LACKING, blamed


def run(module: str) -> int:
    """Import a service's module and run its `main`; the exit status.

    A missing dependency is one line in the journal (sd-daemon(3)), the unit's StatusText=, from where callers read it,
    and an exit status after which systemd does not start the service again (RestartPreventExitStatus=).
    """
    try:
        main = import_module(module).main
    except ImportError as error:
        lacking = blamed(error)
        print(f"<3>{lacking}", file=sys.stderr)
        _notify(f"STATUS={lacking}")
        return LACKING
    return cast("int", main())


def _notify(message: str) -> None:
    """Do sd_notify(3), for which a module may be missing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(message.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
