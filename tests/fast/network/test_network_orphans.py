"""Taps without a matching lease; elements need a kernel (tests/contract/test_network_life.py)."""

from pathlib import Path

import pytest

from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.network import orphans
from solo5_systemd.network.tap_counters import tap_alias


@pytest.fixture
def links(state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of links as in sysfs, and no nftables."""
    monkeypatch.setattr(orphans, "_elements", list)
    monkeypatch.setattr(orphans, "LINKS", state / "net")
    (state / "tasks").mkdir()
    return state / "net"


def link(links: Path, name: str, alias: str) -> None:
    (links / name).mkdir(parents=True)
    (links / name / "ifalias").write_text(f"{alias}\n")


def mark(task: str) -> str:
    return tap_alias(TaskName(task), DeviceName("service"))


@pytest.mark.parametrize("file, found", [("a.json", ()), ("b.json", ("tap s5-x",))])
def test_a_tap_is_an_orphan_if_its_task_has_no_lease(
    links: Path, state: Path, file: str, found: tuple[str, ...]
) -> None:
    link(links, "s5-x", mark("a"))
    (state / "tasks" / file).write_text("{")
    assert orphans.read_orphans() == found


def test_links_of_other_programs_are_no_orphans(links: Path) -> None:
    link(links, "s5-theirs", "a link of theirs")
    link(links, "tap0", mark("a"))
    (links / "s5-gone").mkdir()
    assert orphans.read_orphans() == ()
