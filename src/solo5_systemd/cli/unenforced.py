"""`solo5ctl run` on a host whose cgroup v2 hierarchy lacks controllers: name the limits that will not hold."""

from typing import TYPE_CHECKING

from solo5_systemd.cli.screen import Screen
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


async def warn(engine: "Runtime", workload: Workload, screen: Screen) -> None:
    """Write one sentence to stderr if the kernel will not enforce a limit of the workload."""
    limits = await engine.unenforced(workload)
    if limits:
        names, controllers = (", ".join(dict.fromkeys(words)) for words in (limits, limits.values()))
        screen.say(f"warning: {names} will not hold: cgroup v2 has no {controllers} here; see solo5ctl doctor.")
