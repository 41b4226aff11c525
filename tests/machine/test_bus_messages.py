"""The states of tasks as they are read from files, which are those that PID 1 tells."""

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.machine.conftest import GUESTS, Runner, eventually, ok, sh

from solo5_systemd.bus import unit_states
from solo5_systemd.bus.connection import system_bus
from solo5_systemd.bus.manager import Manager
from solo5_systemd.unit.state import UnitState


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
