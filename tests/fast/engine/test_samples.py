"""The resource usage of all tasks, from the kernel's counters."""

from tests.support.fakes.backends import Machine

from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Sample
from solo5_systemd.network.tap_counters import Counters, Traffic

WEB, ABC, ENDED = map(TaskName, ("web", "abc", "ended"))
NOTHING = Counters(bytes=0, packets=0, errors=0, drops=0)
NICS = {DeviceName("service"): Traffic(received=NOTHING, sent=NOTHING)}


async def test_what_runs_is_sampled_in_the_order_of_names_without_a_call_of_pid_1() -> None:
    machine = Machine()
    busy, idle = Usage(time=1.0, processes=2), Usage(time=1.0)
    machine.usages.running = {WEB: busy, ABC: idle}
    machine.networks.counted = {WEB: NICS, ENDED: NICS}
    found = await Runtime(machine.backends).samples()
    assert list(found.items()) == [(ABC, Sample(usage=idle, nics={})), (WEB, Sample(usage=busy, nics=NICS))]
    assert set(machine.steps.taken) == {"usages", "traffic"}
