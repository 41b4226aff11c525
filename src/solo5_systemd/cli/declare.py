"""`solo5ctl run --declare`: writes the task to a file in the place of a start, and prints what to type next."""

from functools import partial
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError, Solo5Error
from solo5_systemd.cli.context import CommandContext

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.task.workload import Workload


def declare(workload: "Workload", context: CommandContext, *, replace: bool, dry_run: bool) -> int:
    """Write a declaration, or print it, and return the exit status.

    Args:
        replace: replace an existing declaration.
        dry_run: print it instead.

    Raises:
        InvalidRequestError: a declaration cannot describe the task, or there is one of this name.
        HostError: the file cannot be written, or the process is not root.
    """
    from solo5_systemd.declared.files import write_source
    from solo5_systemd.declared.writer import write_declaration
    from solo5_systemd.settings.files import ETC

    text = write_declaration(workload)
    if dry_run:
        context.screen.write(text)
        return 0
    if not context.root:
        raise HostError("writing a declaration requires root.", "Run it with sudo, or print it: --dry-run")
    path = write_source(workload.name, text, ETC, replace=replace)
    context.screen.write(f"{path}\n")
    context.run(partial(_warn, workload, context))
    context.screen.message(
        f"To start it now and at each boot: systemctl daemon-reload && systemctl enable --now {workload.name}"
    )
    return 0


async def _warn(workload: "Workload", context: CommandContext, engine: "Runtime") -> int:
    """Write to stderr why the task cannot start now: what it lacks may come later."""
    try:
        await context.warn_unenforced(engine, workload)
        await engine.starter.check_declared(workload)
    except Solo5Error as error:
        context.screen.message(f"warning: the task could not start now: {error}")
    return 0
