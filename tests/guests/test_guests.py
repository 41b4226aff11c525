"""Every guest without a network, under whichever tender."""

import signal
from pathlib import Path

import pytest
from tests.guests.tenders import Tender

ILLEGAL, SEGMENT, FORBIDDEN = -signal.SIGILL, -signal.SIGSEGV, -signal.SIGSYS


def test_hello_repeats_its_command_line(tender: Tender) -> None:
    ended = tender.run("hello", "plain", "two words", "")
    assert ended.lines[0] == "arguments: 'plain two words '"
    assert (ended.status, ended.stderr) == (0, "")


def test_hello_splits_words_as_mirage_does(tender: Tender) -> None:
    ended = tender.run("hello", r"two\ words", '"a  b"c', r"\"quoted\"", r"back\\slash")
    assert [line.split(" ", 2)[2] for line in ended.lines if line.startswith("argument ")] == [
        "'two words'",
        "'a  bc'",
        "'\"quoted\"'",
        r"'back\slash'",
    ]


@pytest.mark.parametrize(("asked", "seen"), [(0, 0), (7, 7), (255, 255), (256, 0), (300, 44)])
def test_hello_exits_with_the_status_of_its_argument(tender: Tender, asked: int, seen: int) -> None:
    ended = tender.run("hello", f"exit={asked}")
    assert ended.status == seen
    assert ended.lines[-1] == f"Solo5: solo5_exit({asked}) called"


def test_flood_loses_nothing(tender: Tender) -> None:
    ended = tender.run("flood", "lines=2000", "bytes=100")
    lines = ended.lines[:-1]
    assert [int(line.split()[1]) for line in lines] == list(range(1, 2001))
    assert {len(line) for line in lines} == {99}


@pytest.mark.parametrize(("abi", "kind"), [("hvt", "RssShmem"), ("spt", "RssAnon")])
def test_toucher_takes_memory(tmp_path: Path, abi: str, kind: str) -> None:
    tender = Tender(abi=abi, scratch=tmp_path)
    with tender.running("toucher", "mb=16", options=("--mem=32",)) as guest:
        guest.wait_for("touched all 16 MiB")
        status = Path(f"/proc/{guest.process.pid}/status").read_text().splitlines()
        sizes = {line.split(":")[0]: line.split()[1] for line in status if line.startswith("Rss")}
        assert int(sizes[kind]) >= 16 * 1024
        assert sum(int(size) for other, size in sizes.items() if other != kind) < 8 * 1024


def test_aborter_aborts(tender: Tender) -> None:
    ended = tender.run("aborter")
    assert ended.status == 255
    assert ended.lines[-1].startswith("Solo5: ABORT: aborter.c:")
    assert tender.run("aborter", "how=call").lines == ["Solo5: solo5_abort() called"]
    for how, words in (("start", "Not enough heap memory to reserve minor heaps"), ("collect", "during minor GC")):
        fatal, called = tender.run("aborter", f"how={how}").lines
        assert words in fatal
        assert called == "Solo5: solo5_abort() called"
    assert tender.run("aborter", "how=memory").lines[-1].endswith(": Not enough memory")


@pytest.mark.parametrize(
    ("what", "name", "number"),
    [("instruction", "#UD", ILLEGAL), ("read", "#PF", SEGMENT), ("write", "#PF", SEGMENT)],
)
def test_trapper_traps(tender: Tender, what: str, name: str, number: int) -> None:
    ended = tender.run("trapper", f"what={what}")
    if tender.abi == "spt":
        assert ended.status == number
    else:
        assert ended.status == 255
        assert ended.lines[1].startswith(f"Solo5: trap: type={name} ")
        assert ended.lines[2].endswith("Fatal trap")


def test_disk_cannot_leave_its_file(tender: Tender, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(1024))
    ended = tender.run("disk", "sector=2", "write=more", options=(f"--block:storage={path}",))
    assert ended.status == (255 if tender.abi == "hvt" else FORBIDDEN)
    assert path.stat().st_size == 1024


def test_as_many_disks_as_can_be(tender: Tender, tmp_path: Path) -> None:
    options = []
    for i in range(63):
        path = tmp_path / f"disk{i}"
        path.write_bytes(f"disk {i}".encode().ljust(512, b"\0"))
        options.append(f"--block:storage{i}={path}")
    ended = tender.run("disks63", options=tuple(options))
    assert ended.lines[:63] == [f"storage{i}: 'disk {i}'" for i in range(63)]
