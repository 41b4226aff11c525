"""The end of a run: PID 1's link below /run/systemd/units, and what is read over a real bus after it."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd, Unit, pid1
from tests.contract.bus.given import UNIT, WEB, restarted, service
from tests.contract.netservice import PrivateBus

from solo5_systemd.base import inotify as inotify_module
from solo5_systemd.bus import unit_watch as watch_module
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.manager import Manager
from solo5_systemd.dbus.messages import Variant
from solo5_systemd.unit.state import ActiveState, UnitState

RUN = "01" * 16
"""The invocation of `service()`."""


class Links:
    """PID 1's links."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, unit: str, invocation: str = RUN) -> None:
        """Make a link as PID 1 does: with rename(2), over one that is there."""
        new = self._directory / ".new"
        new.symlink_to(invocation)
        new.rename(self._directory / f"invocation:{unit}")

    def end(self, unit: str) -> None:
        (self._directory / f"invocation:{unit}").unlink()


@pytest.fixture
def links(tmp_path: Path, manager: Manager) -> Links:
    return Links(tmp_path / "units")


def a_run(**fields: object) -> UnitState:
    known = UnitState(
        task=WEB,
        unit=UNIT,
        active=ActiveState.ACTIVE,
        invocation=RUN,
        main_pid=42,
        log_fields={"SOLO5_TENDER": "hvt"},
    )
    return known._replace(**fields)  # type: ignore[arg-type]


def stopped() -> Unit:
    """Return a unit that has exited with 0."""
    values = {"ExecMainCode": Variant("i", 1), "ExecMainStatus": Variant("i", 0), "Result": Variant("s", "success")}
    return replace(service("inactive"), properties=service("inactive").properties | values)


async def settled(manager: Manager, links: Links) -> None:
    """Wait until all events so far have been read: the kernel keeps their order."""
    last, removed = "last.service", asyncio.Event()
    links.begin(last)
    manager._removals.watch(manager._states.link(last), removed.set)
    links.end(last)
    await removed.wait()


def is_over(state: UnitState | None) -> bool:
    return state is not None and state.over


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no interval pass, so that only inotify can report an end."""
    monkeypatch.setattr(watch_module, "WATCH_INTERVAL_S", 600)


@pytest.mark.usefixtures("slow")
async def test_a_run_costs_no_message_until_its_end_and_then_what_its_outcome_needs(
    systemd: FakeSystemd, manager: Manager, links: Links
) -> None:
    links.begin(UNIT)
    assert await manager.changed(a_run(), 0.2) == a_run()
    assert (systemd.calls, systemd.read) == ([], [])
    systemd.units[UNIT] = stopped()
    links.end(UNIT)
    state = await manager.changed(a_run())
    assert state is not None
    assert (state.active, state.main_code, state.main_pid) == (ActiveState.INACTIVE, 1, 0)
    assert systemd.calls == []
    assert systemd.read[-1] == "InvocationID", "the last one proves whose all the others are"
    assert len(systemd.read) == 11


@pytest.mark.usefixtures("slow")
async def test_a_run_that_ended_before_its_watch_is_read_at_once(
    systemd: FakeSystemd, manager: Manager, links: Links
) -> None:
    systemd.units[UNIT] = stopped()
    assert is_over(await manager.changed(a_run()))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("removed", [True, False], ids=["unloaded", "started again"])
async def test_a_unit_that_is_gone_or_has_another_run_has_no_state(
    systemd: FakeSystemd, manager: Manager, links: Links, removed: bool
) -> None:
    links.begin(UNIT)
    waiting = asyncio.ensure_future(manager.changed(a_run()))
    await settled(manager, links)
    if removed:
        links.end(UNIT)
    else:
        systemd.units[UNIT] = service(invocation=2)
        links.begin(UNIT, "02" * 16)
    assert await waiting is None


@pytest.mark.usefixtures("slow")
async def test_a_link_that_is_made_again_for_the_same_run_is_no_end(
    systemd: FakeSystemd, manager: Manager, links: Links
) -> None:
    links.begin(UNIT)
    waiting = asyncio.ensure_future(manager.changed(a_run()))
    for _ in range(3):
        links.begin(UNIT)
        await settled(manager, links)
    assert (waiting.done(), systemd.read) == (False, [])
    systemd.units[UNIT] = stopped()
    links.end(UNIT)
    assert is_over(await waiting)


async def test_a_unit_that_runs_without_its_link_is_read_at_an_interval(
    systemd: FakeSystemd, manager: Manager, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "WATCH_INTERVAL_S", 0.1)
    systemd.units[UNIT] = service()
    assert await manager.changed(a_run()) == a_run()
    assert systemd.read.count("InvocationID") == 1, "it is not read in a loop without a pause"
    systemd.units[UNIT] = stopped()
    assert is_over(await manager.changed(a_run()))


async def test_where_inotify_has_reached_a_limit_the_link_is_looked_at(
    systemd: FakeSystemd, manager: Manager, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(inotify_module.Removals, "watch", full)
    monkeypatch.setattr(watch_module, "WATCH_INTERVAL_S", 0.05)
    links.begin(UNIT)
    await manager.changed(a_run(), 0.2)
    assert systemd.read == []
    systemd.units[UNIT] = stopped()
    links.end(UNIT)
    assert is_over(await manager.changed(a_run()))


async def test_an_outage_is_no_end_and_what_ended_during_it_is_read_after_it(
    systemd: FakeSystemd,
    manager: Manager,
    connection: Connection,
    bus: PrivateBus,
    address: str,
    links: Links,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "WATCH_INTERVAL_S", 0.05)
    links.begin(UNIT)
    systemd.units[UNIT] = service()
    assert await manager.state(WEB) is not None
    bus.close()
    units = {UNIT: stopped()}
    links.end(UNIT)
    for _ in range(3):
        assert await manager.changed(a_run()) == a_run()
    async with restarted(bus, connection), pid1(address, units):
        while not is_over(await manager.changed(a_run())):
            pass


@pytest.mark.parametrize("error", ["org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.ServiceUnknown"])
async def test_a_property_without_a_reply_is_no_end(
    systemd: FakeSystemd, manager: Manager, links: Links, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    monkeypatch.setattr(watch_module, "WATCH_INTERVAL_S", 0.05)
    links.begin(UNIT)
    systemd.units[UNIT] = stopped()
    systemd.errors["Get"] = error
    links.end(UNIT)
    assert await manager.changed(a_run()) == a_run()
    del systemd.errors["Get"]
    assert is_over(await manager.changed(a_run()))


# --- a run now ------------------------------------------------------------------------------------------------------


async def test_a_run_in_progress_is_known_without_a_message(
    systemd: FakeSystemd, manager: Manager, links: Links, tmp_path: Path
) -> None:
    links.begin(UNIT)
    freezer = tmp_path / "cgroup/x/cgroup.freeze"
    freezer.parent.mkdir()
    for frozen in (False, True):
        freezer.write_text(f"{int(frozen)}\n")
        run = a_run(control_group="/x")
        assert await manager.current(run) == run._replace(frozen=frozen)
    assert (systemd.calls, systemd.read) == ([], [])


async def test_of_a_run_that_is_over_the_unit_is_read(systemd: FakeSystemd, manager: Manager, links: Links) -> None:
    assert await manager.current(a_run(control_group="/x")) is None
    systemd.units[UNIT] = service(invocation=2)
    links.begin(UNIT, "02" * 16)
    now = await manager.current(a_run(control_group="/x"))
    assert now is not None
    assert now.invocation == "02" * 16
