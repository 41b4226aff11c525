"""Is a unit the one that a stored handle speaks of? Adopted on proof, never by name alone."""

from solo5_systemd.engine.task import Task
from solo5_systemd.errors import NoSuchTaskError
from solo5_systemd.nomad.handle import DriverState


def adopt(stored: DriverState, boot: str, found: Task | None) -> Task:
    """The task, running or ended.

    Args:
        stored: what the handle says.
        boot: the kernel's boot id now.
        found: what PID 1 has under the task's name; None for nothing.

    Raises:
        NoSuchTaskError: it is gone, or another run has its name; Nomad then starts the task anew.
    """
    if stored.boot != boot:
        raise NoSuchTaskError(f"task {stored.task} ended with the host's last boot.")
    if found is None:
        raise NoSuchTaskError(f"task {stored.task} is gone: systemd has no unit {stored.unit}, nor how it ended.")
    if found.invocation != stored.invocation:
        raise NoSuchTaskError(
            f"task {stored.task} is gone: {stored.unit} is another run now ({found.invocation or 'none'}; "
            f"expected {stored.invocation})."
        )
    return found
