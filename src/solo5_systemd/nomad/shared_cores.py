"""The CPU set of tasks without reserved cores: that of Nomad's shared partition (docs/decisions/shared-cores.md).

Nomad takes each core out of this partition that it reserves for a task, and cannot do so in the slices of systemd.
"""

from pathlib import PurePosixPath

from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.workload.convert import SHARED_SLICE

CPUSET_INTERVAL_S = 2.0
"""Seconds between two reads of the CPU set of Nomad's shared partition, which is one small file."""

SHARED = "share.slice"
"""Nomad's cgroup of all tasks without reserved cores (client/lib/cgroupslib)."""


class SharedCores:
    """Keeps the slice of tasks without reserved cores in Nomad's shared partition."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._cgroup = ""
        self._cpus = ""

    def note(self, cpuset_cgroup: str) -> None:
        """Derive the shared partition from a task's cgroup; the next `apply` has its CPU set.

        Args:
            cpuset_cgroup: Nomad's path of any task; that of a task with reserved cores is ignored.
        """
        parent = PurePosixPath(cpuset_cgroup).parent
        if parent.name == SHARED:
            self._cgroup = str(parent)

    async def confine(self, cpuset_cgroup: str) -> None:
        """Apply the CPU set at once, before a task starts, so that it uses no reserved core; as `note` and `apply`."""
        self.note(cpuset_cgroup)
        await self.apply()

    async def apply(self) -> None:
        """Set the CPU set of the partition for the slice, if it has changed.

        Raises:
            HostError: PID 1 is not reachable.
        """
        if not self._cgroup:
            return
        engine = self._session.engine
        cpus = await engine.backends.usages.cpus(self._cgroup)
        if cpus and cpus != self._cpus:
            await engine.confine_slice(SHARED_SLICE, cpus)
            self._cpus = cpus
