"""How many D-Bus messages the life of a task takes, counted where they are sent and received."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.machine.conftest import GUESTS, Machine, Runner, eventually, ok, sh

from solo5_systemd.base.names import TaskName
from solo5_systemd.bus import jobs, unit_states
from solo5_systemd.bus.connection import system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.dbus import message_bus
from solo5_systemd.dbus.message_bus import MessageBus
from solo5_systemd.dbus.messages import Message
from solo5_systemd.engine.runtime import Runtime, connect
from solo5_systemd.settings.files import read_settings
from solo5_systemd.task.workload import StopSignal, Workload
from solo5_systemd.unit.outcome import Ending
from solo5_systemd.unit.state import UnitState

PHASES = {"start": 8, "run": 0, "stop": 14, "discard": 4}
"""The most messages of each phase, of a task with one NIC: calls, and signals.

Where some program has called Subscribe of PID 1, three of the signals are JobRemoved of the units of network
and outcome.
"""


class Counter:
    """Messages of this process."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.received = 0

    def reset(self) -> None:
        self.calls.clear()
        self.received = 0

    @property
    def total(self) -> int:
        """Return the number of calls and signals; each call has a reply."""
        return max(self.received, len(self.calls))


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter()
    send, header = MessageBus.send, message_bus._header

    def sending(bus: MessageBus, message: Message) -> None:
        counter.calls.append(f"{message.destination} {message.member} {message.body[:2]}")
        send(bus, message)

    def receiving(data: bytearray) -> object:
        found = header(data)
        if found is not None and len(data) >= found.size:
            counter.received += 1
        return found

    monkeypatch.setattr(MessageBus, "send", sending)
    monkeypatch.setattr(message_bus, "_header", receiving)
    return counter


@asynccontextmanager
async def engine() -> AsyncIterator[Runtime]:
    """Yield an engine that has run a task before: what it reads once per connection is read."""
    async with connect(read_settings) as runtime:
        await runtime.start(workload("first"))
        await runtime.stop(TaskName("first"))
        await runtime.discard(TaskName("first"))
        yield runtime


def workload(name: str) -> Workload:
    return Workload(name=TaskName(name), image=f"{GUESTS}/net.spt", memory=32 << 20)


def test_the_messages_of_a_tasks_life_are_counted(machine: Machine, messages: Counter) -> None:
    async def life() -> dict[str, tuple[int, list[str]]]:
        found: dict[str, tuple[int, list[str]]] = {}

        async with engine() as runtime:

            async def phase(name: str) -> None:
                await runtime.backends.units.version()  # after its reply, all signals so far have been received
                found[name] = (messages.total - 1, list(messages.calls))
                messages.reset()

            messages.reset()
            started = await runtime.start(workload("web"))
            await phase("start")
            waiting = asyncio.ensure_future(runtime.wait_for_run(started.state))
            await phase("run")
            await runtime.stop_only(TaskName("web"), signal=StopSignal.TERM, timeout_s=10, run=started.state)
            outcome = (await waiting).outcome
            assert outcome is not None
            assert outcome.ending is Ending.STOPPED
            await phase("stop")
            await runtime.discard(TaskName("web"), over=True, unit=started.state.unit)
            await phase("discard")
        return found

    found = asyncio.run(life())
    assert {name: count for name, (count, _) in found.items() if not 0 <= count <= PHASES[name]} == {}, found
    assert found["start"][0] >= 5, "the messages are counted"


def test_tasks_of_other_programs_cost_no_message(
    machine: Machine, messages: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LINGER_S", 0.2)

    async def others() -> tuple[int, int]:
        async with engine() as runtime:
            started = await runtime.start(workload("web"))
            waiting = asyncio.ensure_future(runtime.wait_for_run(started.state))
            rules = runtime.backends.units._connection._rules
            await asyncio.to_thread(eventually, lambda: not rules, "LINGER_S is over")
            await runtime.backends.units.version()  # after its reply, the bus passes on nothing more
            messages.reset()
            for number in range(3):
                await asyncio.to_thread(ok, "systemd-run", "--wait", "--quiet", f"--unit=other-{number}", "true")
            idle = messages.total
            await runtime.stop(TaskName("web"))
            await waiting
            await runtime.discard(TaskName("web"))
            return idle, messages.total

    idle, after = asyncio.run(others())
    assert (idle, after > 10) == (0, True)


class Counting(Manager):
    """A manager that counts the properties that it reads from D-Bus."""

    reads = 0

    async def _read(self, wanted: Sequence[tuple[str, str, str]]) -> list[Any]:
        self.reads += len(wanted)
        return await super()._read(wanted)


async def states() -> tuple[Sequence[UnitState], int]:
    """Return the states of running tasks by name, and the reads for them."""
    async with system_bus() as connection:
        listing = Counting(connection)
        found = sorted(await listing.states(ended=False), key=lambda state: state.unit)
        return found, listing.reads


def test_states_from_files_are_those_from_d_bus(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("sleeper.spt", options=("--label", "NOTE=two words"))
    ok("solo5ctl", "freeze", run("sleeper.hvt"))
    with subprocess.Popen(
        ["solo5ctl", "run", "--scope", "--name", "mine", f"{GUESTS}/sleeper.hvt"], stdout=-1, stderr=-1
    ) as tender:
        try:
            eventually(
                lambda: sh("systemctl", "is-active", "solo5-task-mine.scope").stdout.strip() == "active", "the scope"
            )
            from_files, few = asyncio.run(states())
            monkeypatch.setattr(unit_states, "UNITS", str(tmp_path))
            from_bus, many = asyncio.run(states())
        finally:
            ok("solo5ctl", "stop", "mine")
            tender.communicate(timeout=60)
            ok("solo5ctl", "gc")
    assert from_files == from_bus
    assert [state.frozen for state in from_files].count(True) == 1
    assert "two words" in {value for state in from_files for value in state.log_fields.values()}
    assert few == 0, "start times are in attributes of the cgroups"
    assert many > 3 * len(from_bus)
