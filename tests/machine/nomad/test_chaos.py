"""Random operations on tasks of Nomad and of solo5ctl, and on all services; see tests/machine/chaos."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine.chaos import disks
from tests.machine.chaos import run as run_module
from tests.machine.chaos.history import SHORT
from tests.machine.chaos.invariants import Truth
from tests.machine.chaos.model import Door, Guest, Task
from tests.machine.chaos.run import NO_INTERNAL_ERROR, ChaosError, run
from tests.machine.conftest import Machine, ok
from tests.machine.nomad.agent import WATCHFUL, Agent
from tests.machine.records import records

# A plugin that is killed between a task's end and DestroyTask gets no second call, so that its unit is forgotten.
pytestmark = pytest.mark.configured(WATCHFUL)


def test_the_machine_matches_the_model_after_every_operation(agent: Agent, machine: Machine) -> None:
    machine.expect(NO_INTERNAL_ERROR)
    seed, count = SHORT
    done: list[str] = []
    run(seed, count, agent, say=done.append, varied=True)
    assert len(done) == count
    assert Truth().complaints({}) == []


def test_a_history_that_fails_is_printed_and_leaves_nothing(
    agent: Agent, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.expect(NO_INTERNAL_ERROR)
    monkeypatch.setattr(run_module, "SETTLING", 0)
    monkeypatch.setattr(Truth, "complaints", lambda _, world: ["two is too many"] if len(world) > 1 else [])
    with pytest.raises(ChaosError, match=r"(?s)seed 1:\n.*start chaos-0.*and then:\ntwo is too many"):
        run(1, 20, agent, say=print)


def test_what_no_task_owns_is_a_complaint(agent: Agent) -> None:
    assert Truth().complaints({}) == []
    with Path("/run/solo5/network/tasks/nobody.json").open("x") as lease:
        assert Truth().complaints({}) == ["leases: {'nobody'}, expected set()"]
    Path(lease.name).unlink()
    ok("ip", "tuntap", "add", "nobody", "mode", "tap")
    assert Truth().complaints({}) == ["taps: 1, expected 0"]
    ok("ip", "link", "delete", "nobody")


@pytest.mark.parametrize(
    "log, last, complaint",
    [
        ("data: newest 0\ncount 1\ncount 2\n", 2, ""),
        ("data: newest 0\ncount 1\ncount 2\n", 3, ""),
        ("data: newest 0\ncount 1\ncount 2\n", 1, "lost has 1 records, and it reported 2"),
        ("data: newest 5\ncount 1\n", 5, "lost has 5 records, and it reported 6"),
    ],
)
def test_a_record_that_was_reported_and_is_not_on_the_disk_is_complained_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, last: int, complaint: str
) -> None:
    monkeypatch.setattr(disks, "PLACE", tmp_path)
    (tmp_path / "lost").write_bytes(records(last, disks.SECTORS))
    log = log.replace("count 1", f"scratch: newest {disks.NEWEST_OF_GOLDEN}\nconfig: 'chaos'\ncount 1")
    written = disks.Written()
    assert list(written.complaints("one", "lost", log)) == [complaint] * bool(complaint)
    if not complaint:
        again = list(written.complaints("two", "lost", "data: newest 1\n"))
        assert again == ["it found 1 records on lost, which had 2"], "another task finds what was reported"


def test_a_task_that_is_not_there_is_missed(agent: Agent) -> None:
    gone = Task(number=0, door=Door.CTL, guest=Guest.COUNTS, tender="spt")
    complaints = " ".join(Truth().complaints({gone.name: gone}))
    writer = replace(gone, guest=Guest.WRITES, disk=0)
    assert "locked disks: {}, expected {'chaos-0': 3}" in Truth().complaints({writer.name: writer})
    for what in ("running units", "leases", "published ports", "taps", "tenders", "does not answer"):
        assert what in complaints
