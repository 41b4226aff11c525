"""What the caller of a start provides: callbacks, and the process of a scope."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solo5_systemd.engine.plan import Plan
    from solo5_systemd.network.model import Lease

SpawnProcess = Callable[[Sequence[str], Sequence[int], str], AbstractAsyncContextManager[int]]
"""The caller's part in the start of a scope: provide a process that executes a command line once it is in the scope.

It is called with the command line, the file descriptors that the program has to inherit under these numbers, and the
journal namespace of the console. It yields the process ID, and ends the process if the block raises. The caller closes
the descriptors after a successful start, and only then.
"""


class StartCallbacks:
    """The progress callbacks of a start; here, without effect. They must not block."""

    def on_step(self, doing: str) -> None:
        """Called before each step, such as `reserving addresses`."""

    def on_preflight(self, plan: "Plan") -> None:
        """Called after preflight, before anything but the user is there; an error raised here fails the start."""

    def on_leases(self, leases: "Sequence[Lease]") -> None:
        """Called when addresses are reserved."""
