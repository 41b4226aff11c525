"""A driver that is started anew takes its tasks up again: those that run, those that ended, and no others."""

import pytest
from tests.fast.nomad.agent import Agent, agent
from tests.fast.nomad.values import ALLOCATION, NAME, NOTHING, TASK_ID, UNIT, Fifos, port, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import yields

from solo5_systemd.base.errors import HostError, NoSuchTaskError, SettingsError, Solo5Error
from solo5_systemd.nomad import engine, tasks
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.unit.state import MainCode


@pytest.fixture
async def handle(machine: Machine, fifos: Fifos) -> wire.TaskHandle:
    """What Nomad has of a task after its agent was started anew: all but the job's config."""
    async with agent() as nomad:
        answer = await nomad.start(fifos.of(task_config(port("http", 25001, 80))))
    machine.relay.held.clear()
    answer.handle.config.ClearField("msgpack_driver_config")
    return answer.handle


async def test_of_a_running_task_only_its_identity_is_kept(nomad: Agent, handle: wire.TaskHandle) -> None:
    assert handle.config.job_name == "shop", "Nomad gets the whole configuration back"
    kept = wire.TaskConfig(id=TASK_ID, name="web", alloc_id=ALLOCATION, alloc_dir=handle.config.alloc_dir)
    await nomad.recover(handle)
    assert nomad.driver.tasks.entry(TASK_ID).config == kept


async def test_settings_that_cannot_be_read_keep_no_running_task_from_its_driver(
    machine: Machine, handle: wire.TaskHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Settings:
        raise SettingsError("/etc/solo5/a.toml cannot be read as TOML.")

    monkeypatch.setattr(engine, "CachedSettings", lambda: broken)
    async with agent() as nomad:
        await nomad.recover(handle)
        machine.units.end(UNIT, MainCode.EXITED, 3)
        assert (await nomad.wait()).result.exit_code == 3


async def test_the_removal_of_a_recovered_task_fails_with_a_reason_and_can_be_repeated(
    machine: Machine, nomad: Agent, handle: wire.TaskHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "REMOVE_TIMEOUT_S", 0)
    machine.units.end(UNIT, MainCode.EXITED, 0)
    await nomad.recover(handle)
    machine.steps.errors["reset_failed"] = HostError("systemd does not answer.")
    with pytest.raises(HostError, match="systemd does not answer"):
        await nomad.destroy()
    assert not nomad.driver.tasks.claimed(), "the unit is a forgotten task's, if Nomad does not repeat it"
    machine.steps.errors.clear()
    await nomad.destroy()
    assert machine.holds == NOTHING


async def test_another_run_under_the_same_name_is_not_adopted(
    machine: Machine, nomad: Agent, handle: wire.TaskHandle
) -> None:
    machine.units.put(machine.units.loaded[UNIT]._replace(invocation="f" * 32))
    with pytest.raises(NoSuchTaskError, match="systemd has no unit .* of invocation"):
        await nomad.recover(handle)


async def test_a_task_of_an_earlier_boot_is_not_adopted(
    nomad: Agent, handle: wire.TaskHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "boot_id", lambda: "the next one")
    with pytest.raises(NoSuchTaskError, match="ended with the previous boot of the host"):
        await nomad.recover(handle)


async def test_an_outage_without_an_end_is_reported_once_for_all(
    machine: Machine, nomad: Agent, handle: wire.TaskHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "RECOVER_TIMEOUT_S", 0.05)
    monkeypatch.setattr(tasks, "RETRY_INTERVAL_S", 0.01)
    machine.steps.errors["current"] = HostError("the system bus does not answer.")
    with pytest.raises(HostError):
        await nomad.recover(handle)
    before = machine.steps.taken.count("current")
    with pytest.raises(HostError):
        await nomad.recover(handle)
    assert machine.steps.taken.count("current") == before + 1, "the next one does not wait as long again"
    machine.steps.errors.clear()
    await nomad.recover(handle)


@pytest.mark.parametrize("step", ["forward", "cpus /nomad.slice/share.slice", "confine solo5-shared.slice"])
async def test_a_running_task_is_not_given_up_for_what_can_wait(
    machine: Machine, nomad: Agent, handle: wire.TaskHandle, step: str
) -> None:
    handle.config.resources.linux_resources.cpuset_cgroup = "/nomad.slice/share.slice/alloc.web.scope"
    machine.usages.cpusets["/nomad.slice/share.slice"] = "0-1"
    machine.steps.errors[step] = Solo5Error("not now.")
    await nomad.recover(handle)
    assert (await nomad.inspect()).task.state == wire.RUNNING


async def test_a_console_whose_reader_is_gone_for_good_keeps_no_task_from_recovery(
    machine: Machine, nomad: Agent, handle: wire.TaskHandle
) -> None:
    handle.config.stdout_path = handle.config.stderr_path = "/proc/self/nothing"
    await nomad.recover(handle)
    await yields(50)
    assert machine.relay.held == {}
    assert (await nomad.inspect()).task.state == wire.RUNNING


def many() -> list[wire.TaskConfig]:
    tasks = [task_config() for _ in range(20)]
    for number, task in enumerate(tasks):
        task.id, task.name = f"{ALLOCATION}/web{number}/0", f"web{number}"
    return tasks


async def test_a_task_that_runs_is_recovered_without_a_request(machine: Machine) -> None:
    async with agent() as nomad:
        handles = [(await nomad.start(task)).handle for task in many()]
    machine.steps.taken.clear()
    async with agent() as nomad:
        for handle in handles:
            await nomad.recover(handle)
        await yields(200)
        assert not {"state", "states", "is_running", "forward"} & set(machine.steps.taken)


async def test_a_console_that_the_relay_still_holds_is_left_alone(
    machine: Machine, nomad: Agent, handle: wire.TaskHandle
) -> None:
    machine.relay.held[NAME] = (UNIT, 1)
    await nomad.recover(handle)
    await yields(50)
    assert machine.relay.held[NAME] == (UNIT, 1)


@pytest.mark.parametrize("lost", [True, False])
async def test_what_a_relay_without_descriptors_owes_of_an_ended_task_is_delivered_before_the_end_and_nothing_twice(
    machine: Machine, nomad: Agent, handle: wire.TaskHandle, *, lost: bool
) -> None:
    if lost:
        machine.relay.lost.add(NAME)
    machine.units.end(UNIT, MainCode.EXITED, 0)
    machine.steps.taken.clear()
    await nomad.recover(handle)
    await nomad.wait()
    taken = machine.steps.taken
    assert ("forward" in taken) is lost
    assert not lost or taken.index("forward") < taken.index("drain")


async def test_a_recovery_does_not_wait_for_a_relay_that_does_not_answer(
    machine: Machine, nomad: Agent, handle: wire.TaskHandle
) -> None:
    machine.steps.hang_on = "open_tasks"
    await nomad.recover(handle)
    assert (await nomad.inspect()).task.state == wire.RUNNING
