"""What the driver does by itself: cores, images, networks."""

from contextlib import aclosing

import pytest
from tests.fast.nomad.agent import Agent, agent, agent_of_a_task
from tests.fast.nomad.values import NOTHING, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import yields

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.nomad import housekeeping
from solo5_systemd.nomad.plugin_config import ForgottenTasksConfig, GcConfig, PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire

SHARED = "/sys/fs/cgroup/nomad.slice/share.slice"
RESERVED = "/sys/fs/cgroup/nomad.slice/reserve.slice"


def on_cores(cgroup: str, cpus: str = "") -> wire.TaskConfig:
    task = task_config()
    task.resources.linux_resources.cpuset_cgroup = f"{cgroup}/alloc.web.scope"
    task.resources.linux_resources.cpuset_cpus = cpus
    return task


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Periods that are over at once."""
    monkeypatch.setattr(housekeeping, "CPUSET_INTERVAL_S", 0)


async def begun(nomad: Agent) -> None:
    """The driver is at work."""
    async with aclosing(nomad.fingerprints()) as fingerprints:
        await anext(fingerprints)


def cpus_of(machine: Machine, slice_unit: str = "solo5-shared.slice") -> object:
    (setting,) = machine.units.confined[slice_unit]
    return (setting.name, setting.value)


# --- cores ---------------------------------------------------------------------------------------------------


async def test_tasks_are_confined_to_nomads_shared_cores_before_the_first_of_them_starts(
    machine: Machine, nomad: Agent
) -> None:
    machine.usages.cpusets[SHARED] = "0-1"
    await nomad.start(on_cores(SHARED))
    assert cpus_of(machine) == ("AllowedCPUs", b"\x03")
    taken = machine.steps.taken
    assert taken.index("confine solo5-shared.slice") < taken.index("start unit")


async def test_a_task_whose_cores_cannot_be_kept_apart_does_not_start(machine: Machine, nomad: Agent) -> None:
    machine.usages.cpusets[SHARED] = "0-1"
    machine.steps.errors["confine solo5-shared.slice"] = HostError("cgroup v1.")
    with pytest.raises(HostError, match="cgroup v1"):
        await nomad.start(on_cores(SHARED))
    assert machine.holds == NOTHING


@pytest.mark.parametrize("cgroup", ["", RESERVED, "/sys/fs/cgroup/cpuset/nomad/share"])
async def test_where_nomad_shares_no_cores_nothing_is_confined(machine: Machine, nomad: Agent, cgroup: str) -> None:
    await nomad.start(on_cores(cgroup, "2"))
    assert machine.units.confined == {}


async def test_shared_cores_are_followed_as_nomad_changes_them_also_after_a_failure(
    machine: Machine, nomad: Agent, at_work: None
) -> None:
    machine.usages.cpusets[SHARED] = "0-1"
    await begun(nomad)
    await nomad.start(on_cores(SHARED))
    machine.steps.errors["confine solo5-shared.slice"] = HostError("not now.")
    machine.usages.cpusets[SHARED] = "1"
    await yields(200)
    assert cpus_of(machine) == ("AllowedCPUs", b"\x03")
    machine.steps.errors.clear()
    await yields(200)
    assert cpus_of(machine) == ("AllowedCPUs", b"\x02")
    confined = machine.steps.taken.count("confine solo5-shared.slice")
    await yields(200)
    assert machine.steps.taken.count("confine solo5-shared.slice") == confined


async def test_recovered_tasks_follow_the_shared_cores_too(machine: Machine, at_work: None) -> None:
    async with agent() as nomad:
        handle = (await nomad.start(on_cores(SHARED))).handle
    machine.usages.cpusets[SHARED] = "0"
    async with agent() as nomad:
        await begun(nomad)
        await nomad.recover(handle)
        await yields(200)
    assert cpus_of(machine) == ("AllowedCPUs", b"\x01")


# --- images --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (HostError("the disk is sick."), "gc of images failed: the disk is sick."),
        (ValueError("a fault"), "gc of images failed: internal error"),
    ],
)
async def test_a_collection_that_fails_is_tried_again(
    machine: Machine, nomad: Agent, caplog: pytest.LogCaptureFixture, error: Exception, logged: str
) -> None:
    machine.steps.errors["collect images"] = error
    nomad.base.config = PluginConfig(gc=GcConfig(interval=0))
    await begun(nomad)
    await yields(200)
    assert machine.steps.taken.count("collect images") > 1
    assert logged in caplog.messages


@pytest.mark.parametrize("enabled", [True, False])
async def test_what_tasks_have_left_of_disks_is_cleaned_up_once_when_the_driver_begins(
    machine: Machine, nomad: Agent, caplog: pytest.LogCaptureFixture, enabled: bool
) -> None:
    """Whether it collects or not, and long before the first collection."""
    caplog.set_level("INFO")
    machine.disks.left = ("/run/solo5/binds/startx",)
    machine.users.kept = ("disk '/srv/a.img' cannot be reclaimed from user 61200: Input/output error.",)
    nomad.base.config = PluginConfig(gc=GcConfig(enabled=enabled, interval=3600))
    await begun(nomad)
    await begun(nomad)
    await yields(100)
    assert [machine.steps.taken.count(step) for step in ("sweep disks", "reclaim disks")] == [1, 1]
    assert "removal of stale bind mounts: /run/solo5/binds/startx" in caplog.messages
    assert machine.users.kept[0] in caplog.messages


# --- forgotten tasks, and consoles of removed ones --------------------------------------------------------------


async def test_a_plugin_that_lost_its_agent_ends_nothing(machine: Machine) -> None:
    """Another plugin may have replaced it, whose tasks are unknown to this one."""
    async with agent_of_a_task() as nomad:
        forgotten = ForgottenTasksConfig(period=0, creation_grace=0)
        nomad.base.config = PluginConfig(gc=GcConfig(dangling_tasks=forgotten))
        await begun(nomad)
        await yields(50)
        own = next(iter(machine.units.loaded.values()))
        machine.units.put(own._replace(task=TaskName("next"), unit="solo5-task-next.service", invocation="f" * 32))
        await yields(300)
        assert len(machine.units.loaded) == 2
        async with aclosing(nomad.fingerprints()) as listening:
            await anext(listening)
            await yields(300)
        assert len(machine.units.loaded) == 1
