"""The steps of an update, on in-memory backends: which guest has the ports, and what is left."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background, yields

from solo5_systemd.base.errors import HostError, InvalidRequestError, StartError
from solo5_systemd.base.names import Target, TaskName
from solo5_systemd.declared.update_files import Phase, UpdateFiles
from solo5_systemd.declared.update_request import UpdateRequest
from solo5_systemd.engine import readiness, update
from solo5_systemd.engine.restart import StoppedError
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.update import Updater
from solo5_systemd.image.manifest import Manifest
from solo5_systemd.network.model import Endpoint, Protocol
from solo5_systemd.task.workload import Publish, Workload
from solo5_systemd.unit.state import ActiveState, MainCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WEB, NEXT = TaskName("web"), TaskName("web.next")
UNIT, SECOND = "solo5-task-web.service", "solo5-task-web.next.service"
WORKLOAD = Workload(
    name=WEB, image="/srv/app", publish=(Publish(host_port=8080, port=80, protocol=Protocol.TCP, nic=None),)
)
QUICK = UpdateRequest(timeout=5.0, drain=0.0, watch=0.0)


class Report(UpdateFiles):
    """What an update reports, and the images of its task.

    Attributes:
        bad: the new image does not switch.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.last: Phase | None = None
        self.bad = False
        self.during_switch: Callable[[], Awaitable[None]] | None = None

    @property
    def phase(self) -> Phase | None:
        return self.last

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self.seen.append(phase)
        self.last = phase

    def settle(self) -> None:
        self.last = None

    def step(self, text: str) -> None:
        self.seen.append(text.partition(":")[0])

    async def switch(self) -> None:
        self.seen.append("switch")
        if self.during_switch is not None:
            await self.during_switch()
        if self.bad:
            raise HostError("the image was changed.")

    async def revert(self) -> None:
        self.seen.append("revert")

    def remember(self) -> None:
        self.seen.append("remember")


@pytest.fixture
def report() -> Report:
    return Report()


@pytest.fixture
def old(machine: Machine) -> Manifest:
    return machine.images.files["/srv/app"].manifest


@pytest.fixture
async def updater(runtime: Runtime, report: Report, monkeypatch: pytest.MonkeyPatch) -> Updater:
    async def ready(endpoint: Endpoint, timeout_s: float) -> str:
        return ""

    monkeypatch.setattr(readiness, "failure", ready)
    monkeypatch.setattr(update, "notify", report.seen.append)
    for module, interval in (
        (readiness, "SETTLE_S"),
        (readiness, "PROBE_INTERVAL_S"),
        (update, "GUESTS_INTERVAL_S"),
    ):
        monkeypatch.setattr(module, interval, 0.01)
    await runtime.start(WORKLOAD)
    return Updater(runtime, WEB, UNIT, report, report, publishes=True)


def make_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failure(endpoint: Endpoint, timeout_s: float) -> str:
        return "connection refused"

    monkeypatch.setattr(readiness, "failure", failure)


async def test_the_second_guest_of_an_update_has_no_idle_time(
    machine: Machine, updater: Updater, report: Report, old: Manifest
) -> None:
    """No socket unit would start it again."""
    seen: list[bool] = []

    async def look() -> None:
        seen.append(machine.networks.held[NEXT].idle_stops)

    report.during_switch = look
    await updater.update(replace(WORKLOAD, idle_s=60, idle_stops=True), QUICK, None, old)
    assert seen == [False]


@pytest.mark.parametrize("released", [False, True])
async def test_an_update_in_the_moment_of_an_end_waits_for_what_becomes_of_the_task(
    machine: Machine, updater: Updater, *, released: bool
) -> None:
    """solo5-networkd has ended it for idleness, or it was stopped; the record of its network follows."""
    running = machine.units.loaded[UNIT]
    machine.units.put(running._replace(active=ActiveState.DEACTIVATING))
    async with Background(updater.ensure_runs()) as starting:
        machine.units.put(running._replace(active=ActiveState.FAILED, main_pid=0))
        await yields()
        assert not starting.done()
        if released:
            del machine.networks.held[WEB]
        else:
            machine.networks.dormant.add(WEB)
        with pytest.raises(InvalidRequestError, match="task web does not run"):  # the start of a fake has no effect
            await starting
    assert (f"require {UNIT}" in machine.steps.taken) is not released


@pytest.mark.parametrize("pause", [False, True])
async def test_an_image_that_cannot_be_switched_leaves_the_run_alone(
    machine: Machine, updater: Updater, report: Report, old: Manifest, *, pause: bool
) -> None:
    report.bad = True
    before = machine.units.loaded[UNIT].invocation
    with pytest.raises(HostError, match="the image was changed"):
        await updater.update(WORKLOAD, replace(QUICK, pause=pause), None, old)
    assert report.seen[-2:] == ["switching", "switch"]
    assert machine.units.loaded.keys() == {UNIT}
    assert machine.units.loaded[UNIT].invocation == before
    assert machine.networks.held.keys() == {WEB}
    assert machine.networks.held[WEB].ports
    assert report.phase is None


def check_stopped(machine: Machine, updater: Updater, report: Report) -> None:
    assert report.seen[-2:] == ["switch", "revert"]
    assert machine.units.loaded[UNIT].over
    assert SECOND not in machine.units.loaded
    assert NEXT not in machine.networks.held
    assert report.phase is None


async def test_a_task_that_is_removed_while_its_new_guest_is_watched_ends_the_update(
    machine: Machine, updater: Updater, report: Report, old: Manifest
) -> None:
    """Its unit file is still there: PID 1 loads the unit again, as one that never ran."""
    async with Background(updater.update(WORKLOAD, replace(QUICK, watch=600.0), None, old)) as updating:
        while update.SERVING not in report.seen:
            await yields(1)
        loaded = machine.units.loaded[UNIT]
        machine.units.loaded[UNIT] = loaded._replace(active=ActiveState.INACTIVE, main_pid=0, started=0, ended=0)
        with pytest.raises(StoppedError, match="task web was stopped during its update"):
            await updating
    assert SECOND not in machine.units.loaded
    assert NEXT not in machine.networks.held


@pytest.mark.parametrize("by", ["canceled", "stopped_before", "conflicts"])
@pytest.mark.parametrize("pause", [False, True])
async def test_a_stop_in_the_place_of_the_restart_is_not_overridden(
    machine: Machine, updater: Updater, report: Report, old: Manifest, *, pause: bool, by: str
) -> None:
    setattr(machine.units, by, 3 if by == "conflicts" else True)
    with pytest.raises(StoppedError):
        await updater.update(WORKLOAD, replace(QUICK, pause=pause), None, old)
    check_stopped(machine, updater, report)


async def test_a_task_that_is_being_stopped_is_waited_for_and_stays_stopped(
    machine: Machine, updater: Updater, report: Report, old: Manifest
) -> None:
    async def begin_to_stop() -> None:
        machine.units.heeds = ()  # it takes a while
        stopping.append(asyncio.ensure_future(machine.units.stop(UNIT)))
        await yields(50)

    stopping: list[asyncio.Future[None]] = []
    report.during_switch = begin_to_stop
    async with Background(updater.update(WORKLOAD, QUICK, None, old)) as updating:
        while machine.units.loaded[UNIT].active is not ActiveState.DEACTIVATING:
            await yields(1)
        await yields(50)
        machine.units.heeds = (2, 15)
        machine.units.end(UNIT, MainCode.KILLED, 9)
        with pytest.raises(StoppedError):
            await updating
    await stopping[0]
    check_stopped(machine, updater, report)


async def test_an_interrupted_update_starts_no_task_that_was_stopped(machine: Machine, updater: Updater) -> None:
    await machine.units.stop(UNIT)
    for restart in (False, True):
        with pytest.raises(StoppedError):
            await updater.complete(None, 1.0, restart=restart)
        assert machine.units.loaded[UNIT].over
    machine.units.refused = True  # not a stop: its start with the new image has failed
    await updater.complete(None, 5.0, restart=True)
    assert not machine.units.loaded[UNIT].over


async def test_a_guest_that_ends_before_it_is_ready_is_not_waited_for(
    machine: Machine, updater: Updater, report: Report, old: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unready(monkeypatch)
    async with Background(updater.update(WORKLOAD, QUICK, None, old)) as updating:
        await yields(50)
        while SECOND not in machine.units.loaded:
            await yields(1)
        machine.units.end(SECOND, MainCode.EXITED, 1)
        with pytest.raises(StartError, match="the new guest ended before it was ready: "):
            await updating
    assert report.seen == ["beside"]
    assert machine.networks.held.keys() == {WEB}
    assert machine.networks.held[WEB].ports


async def test_a_task_that_has_other_ports_or_devices_is_refused(
    machine: Machine, updater: Updater, report: Report, old: Manifest
) -> None:
    other = replace(WORKLOAD, publish=(Publish(host_port=8081, port=80, protocol=Protocol.TCP, nic=None),))
    with pytest.raises(InvalidRequestError, match="the published ports of web have changed"):
        await updater.update(other, QUICK, None, old)
    none = Manifest(target=Target.HVT, nics=(), disks=())
    for pause in (False, True):  # with a pause, the old guest is not stopped for it
        with pytest.raises(InvalidRequestError, match="has the devices"):
            await updater.update(WORKLOAD, replace(QUICK, pause=pause), None, none)
    assert report.seen == []
    assert machine.networks.held.keys() == {WEB}
