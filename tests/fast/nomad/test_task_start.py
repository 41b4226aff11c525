"""A start hands its FIFOs to the relay; a failed one is undone, and its error has whether a retry can help."""

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fast.nomad.agent import Agent, agent
from tests.fast.nomad.values import NAME, NOTHING, TASK_ID, UNIT, Fifos, port, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background
from tests.support.fakes.images import stored

from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error, StartError, TakenError
from solo5_systemd.base.names import task_service
from solo5_systemd.nomad import start
from solo5_systemd.nomad.errors import RECOVERABLE
from solo5_systemd.nomad.handle import decode
from solo5_systemd.task.log_fields import LOG_NAMESPACE, TENDER

STEPS = (
    "forward", "is_taken", "total_memory", "take image", "find tender", "find groups", "inspect disk",
    "reserve", "lock disks", "open stderr", "attach", "start unit",
)  # fmt: skip


@pytest.fixture
def disk(machine: Machine) -> dict[str, Any]:
    """The options of a job with every device."""
    machine.images.files["/srv/app"] = stored(nics="service", disks="storage")
    return {"block": {"storage": {"source": "disk.img"}}}


ERRORS = [(HostError("away."), True), (TakenError("held."), True), (InvalidRequestError("wrong."), False)]
CASES = [(step, *error) for step in STEPS for error in ERRORS if (step, type(error[0])) != ("start unit", TakenError)]


@pytest.mark.parametrize("step, error, again", CASES, ids=lambda value: str(value))
async def test_a_step_that_fails_leaves_nothing_and_is_reported_as_it_is(
    machine: Machine, nomad: Agent, fifos: Fifos, disk: dict[str, Any], step: str, error: Solo5Error, again: bool
) -> None:
    machine.steps.errors[step] = error
    with pytest.raises(type(error), match=error.sentence) as caught:
        await nomad.start(fifos.of(task_config(port("http", 80), **disk)))
    assert step in machine.steps.taken
    assert (machine.holds, machine.relay.held) == (NOTHING, {})
    assert isinstance(caught.value, RECOVERABLE) is again
    del machine.steps.errors[step]
    await nomad.start(fifos.of(task_config(**disk)))


async def test_a_unit_that_does_not_come_up_leaves_nothing_and_may_be_tried_again(
    machine: Machine, nomad: Agent, fifos: Fifos
) -> None:
    machine.units.job_result = "failed"
    machine.console.failures[UNIT] = ["solo5-hvt: no such device"]
    with pytest.raises(StartError, match="its tender failed: solo5-hvt: no such device") as caught:
        await nomad.start(fifos.of(task_config()))
    assert (machine.holds, machine.relay.held) == (NOTHING, {})
    assert isinstance(caught.value, RECOVERABLE)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(10))
async def test_a_start_that_is_called_off_leaves_nothing(
    machine: Machine, nomad: Agent, fifos: Fifos, number: int, late: bool
) -> None:
    machine.steps.hang_at, machine.steps.late = number, late
    async with Background(nomad.start(fifos.of(task_config()))) as starting:
        await machine.steps.hanging.wait()
    assert starting.cancelled()
    assert (machine.holds, machine.relay.held) == (NOTHING, {})


@pytest.mark.parametrize("step", ["reserve", "start unit"])
async def test_a_start_that_takes_too_long_is_given_up(
    machine: Machine, nomad: Agent, fifos: Fifos, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(start, "START_TIMEOUT_S", 1)  # a loaded machine takes a while to come to the step
    machine.steps.hang_on = step
    with pytest.raises(HostError, match="task web did not start within") as caught:
        await nomad.start(fifos.of(task_config()))
    assert (machine.holds, machine.relay.held) == (NOTHING, {})
    assert isinstance(caught.value, RECOVERABLE)
    monkeypatch.setattr(start, "START_TIMEOUT_S", 60)
    await nomad.start(fifos.of(task_config()))


async def test_a_console_is_forwarded_from_its_namespace_and_the_handle_keeps_that(
    machine: Machine, nomad: Agent, fifos: Fifos
) -> None:
    machine.console.log_namespace = "guests"
    handle = (await nomad.start(fifos.of(task_config()))).handle
    assert machine.relay.namespaces == ["guests"]
    assert decode(handle.driver_state).run.log_fields == {TENDER: "hvt", LOG_NAMESPACE: "guests"}, "not the job's"


@pytest.mark.parametrize(
    "config, words",
    [
        ({"tender": "qemu"}, "tender 'qemu' is unknown"),
        ({"ready": {"tcp": "http"}}, "config.ready.tcp names 'http'"),
        ({"block": {"storage": {"volume": "data"}}}, "volume data is not mounted"),
    ],
)
async def test_a_job_that_is_refused_lets_nomads_readers_go(
    machine: Machine, fifos: Fifos, config: dict[str, Any], words: str
) -> None:
    """Each waits for its FIFO to be opened, and closed again, and Nomad seconds for each."""
    job = fifos.of(task_config(**config))
    if "block" in config:
        job.mounts.add(task_path="data", host_path=f"/nowhere/per-alloc/{job.alloc_id}/data/rw")
    with reading(fifos) as hung_up:
        assert hung_up() == 0
        async with agent() as nomad:
            with pytest.raises(Solo5Error, match=words):
                await nomad.start(job)
        assert hung_up() == 2
    assert "forward" not in machine.steps.taken


async def test_fifos_without_a_reader_are_reported_before_anything_is_made(machine: Machine, nomad: Agent) -> None:
    task = task_config()
    task.stdout_path = task.stderr_path = "/proc/self/nothing"
    with pytest.raises(HostError, match="/proc/self/nothing cannot be opened"):
        await nomad.start(task)
    assert "start unit" not in machine.steps.taken


async def test_a_unit_of_another_start_is_not_undone(machine: Machine, fifos: Fifos) -> None:
    """The unit existed before this start: a failure of the start does not remove it."""
    async with agent() as nomad:
        await nomad.start(fifos.of(task_config()))
    before = machine.holds
    async with agent() as nomad:
        machine.steps.errors["reservation"] = HostError("leases cannot be read.")
        with pytest.raises(HostError):
            await nomad.start(fifos.of(task_config()))
        assert machine.holds == before


@pytest.mark.parametrize("config, kind", [({}, InvalidRequestError), ({"ports": ["dns"]}, TakenError)])
async def test_a_port_of_another_task_of_the_allocation_is_not_tried_again(
    machine: Machine, nomad: Agent, fifos: Fifos, config: dict[str, Any], kind: type[Solo5Error]
) -> None:
    """A port that is taken by a task of another allocation, or by a process, may be free another time."""
    ports = port("http", 80), port("dns", 53)
    await nomad.start(fifos.of(task_config(*ports, ports=["http"])))
    machine.steps.errors["reserve"] = TakenError("held.")
    second = task_config(*ports, **config)
    second.id, second.name = TASK_ID.replace("/web/", "/proxy/"), "proxy"
    with pytest.raises(kind) as caught:
        await nomad.start(fifos.of(second))
    assert isinstance(caught.value, RECOVERABLE) is (kind is TakenError)
    assert ("port http is published to task web of the same allocation" in str(caught.value)) is (not config)
    del machine.steps.errors["reserve"]


async def test_the_relay_knows_the_unit_before_it_starts(machine: Machine, nomad: Agent, fifos: Fifos) -> None:
    await nomad.start(fifos.of(task_config()))
    unit, since = machine.relay.held[NAME]
    assert (unit, since > 1_700_000_000_000_000) == (task_service(NAME), True)
    assert machine.steps.taken.index("forward") < machine.steps.taken.index("start unit")


@pytest.mark.parametrize("config, plugin", [({"logging": "journald"}, {}), ({}, {"defaults": {"logging": "journald"}})])
async def test_a_console_that_stays_in_the_journal_ends_for_its_reader_at_once(
    machine: Machine, fifos: Fifos, config: dict[str, Any], plugin: dict[str, object]
) -> None:
    with reading(fifos) as hung_up:
        async with agent() as nomad:
            await nomad.configure(**plugin)
            await nomad.start(fifos.of(task_config(**config)))
        assert hung_up() == 2
    assert machine.relay.units == []


@contextmanager
def reading(fifos: Fifos) -> Iterator[Callable[[], int]]:
    """Read both; yields what returns to how many of them a writer came, and went."""
    readers, seen = [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for path in fifos], select.poll()
    for reader in readers:
        seen.register(reader, select.POLLIN)
    yield lambda: [event for _, event in seen.poll(0)].count(select.POLLHUP)
    for reader in readers:
        os.close(reader)
