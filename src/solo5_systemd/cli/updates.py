"""`solo5ctl update` and `solo5ctl rollback`: request an update of systemd, and show its steps."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.names import INVOCATION_LINK, UNITS, update_service
from solo5_systemd.cli.context import CommandContext

if TYPE_CHECKING:
    from solo5_systemd.base.names import TaskName
    from solo5_systemd.declared.update_files import UpdateFiles
    from solo5_systemd.declared.update_request import UpdateRequest
    from solo5_systemd.engine.runtime import Runtime

POLL_INTERVAL_S = 0.05
"""Seconds between two looks at the steps of an update."""


def files_of(name: "TaskName", context: CommandContext) -> "UpdateFiles":
    """Return the files of a task's updates.

    Raises:
        HostError: the process is not root.
        NotFoundError: there is no such declared task.
        InvalidRequestError: an instance that was not started.
    """
    from solo5_systemd.base.declared_units import has_declaration, is_declared
    from solo5_systemd.declared.update_files import UpdateFiles

    context.require_root()
    if not is_declared(name) and has_declaration(name):  # its directory is made at its first start
        raise InvalidRequestError(
            f"task {name} does not run: expected one that does.", f"Start it: systemctl start {name}"
        )
    if not is_declared(name):
        raise NotFoundError(
            f"there is no declared task {name!r}: expected one of /etc/solo5.",
            f"To declare a task: solo5ctl run … --declare {name}; after a change of a file: systemctl daemon-reload",
        )
    return UpdateFiles(name)


def update(
    name: "TaskName", request: "UpdateRequest", files: "UpdateFiles", context: CommandContext, *, block: bool
) -> int:
    """Start solo5-update@NAME; with `block`, show its steps until it is over. Return the exit status.

    An interrupted command leaves the update to systemd.

    Raises:
        TakenError: an update is under way.
        HostError: systemd did not start it.
    """
    unit = update_service(name)

    async def command(engine: "Runtime") -> int:
        from solo5_systemd.unit.state import OVER

        units = engine.backends.units
        if files.under_way and await units.active_state(unit) in OVER:  # its end was killed as well
            files.remove_request()
        files.write_request(request)
        try:
            await units.begin(unit)
        except BaseException:
            files.remove_request()
            raise
        return 0

    status = context.run(command)
    return status if status or not block else _show(files, context, Path(f"{UNITS}/{INVOCATION_LINK}{unit}"))


def _show(files: "UpdateFiles", context: CommandContext, run: Path) -> int:
    """Print each step when it is taken, until the update is over; return its exit status.

    Args:
        run: what exists as long as the unit runs.
    """
    begun, shown, status = time.monotonic(), 0, HostError.exit_status
    under_way, began = True, False
    while under_way:
        running = run.is_symlink()
        began |= running
        under_way = files.under_way and (running or not began)  # read first: the last step comes before the end
        for text, end in files.steps()[shown:]:
            shown += 1
            status = status if end is None else end
            if end:
                context.screen.message(text)
            else:
                context.screen.write(f"{time.monotonic() - begun:7.2f} s  {text}\n")
        if under_way:
            time.sleep(POLL_INTERVAL_S)
    return status
