"""The reader on a libsystemd in memory; the real one is read in a machine."""

import ctypes
import errno
from typing import Any

import pytest

from solo5_systemd.base.errors import HostError
from solo5_systemd.journal import reader as sdjournal
from solo5_systemd.journal.lines import original_bytes
from solo5_systemd.journal.reader import JournalReader


class Library:
    """Entries without fields; `codes` is what asking each for its time gives.

    Attributes:
        calls: the functions that were called which change what is matched, or where the reader stands.
        steps: what the next steps give, before there are entries again.
    """

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.steps: list[int] = []
        self.skips: list[int] = []
        self.watch = 0
        self._cursors: list[ctypes.Array[ctypes.c_char]] = []
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._call(name.removeprefix("sd_journal_"), *arguments)

    def _call(self, name: str, *arguments: Any) -> int:
        if name.startswith(("add_", "seek_")):
            self.calls.append((name, *arguments[1:2]))
        if name == "get_fd":
            return self.watch
        if name == "previous_skip":
            return self.skips.pop(0)
        if name == "next":
            return self.steps.pop(0) if self.steps else bool(self.codes)
        if name == "get_monotonic_usec":
            return self.codes.pop(0)
        if name == "get_cursor":
            self._cursors.append(ctypes.create_string_buffer(b"s=1;i=%d" % len(self.codes)))
            arguments[1].value = ctypes.addressof(self._cursors[-1])
        return -errno.ENOENT if name == "get_data" else 0


@pytest.fixture(params=[errno.EBADMSG, errno.EINVAL, errno.EADDRNOTAVAIL], ids=errno.errorcode.get)
def library(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Library:
    library = Library(0, -request.param, -request.param, 0)
    monkeypatch.setattr(sdjournal, "_library", lambda: library)
    return library


def test_entries_of_a_file_that_is_being_removed_are_skipped(library: Library) -> None:
    reader = JournalReader([])
    lines = list(iter(reader.next, None))
    assert [line.position.cursor for line in lines] == ["s=1;i=4", "s=1;i=1"]


def test_a_failed_step_is_retried_from_the_last_line(library: Library) -> None:
    reader = JournalReader([])
    reader.seek_realtime(0)
    lines = iter(reader.next, None)
    library.steps = [-errno.EBADMSG, 1]
    first = next(lines).position.cursor
    library.steps = [-errno.EBADMSG, -errno.EBADMSG, 1]
    assert next(lines).position.cursor != first
    assert library.calls == [("seek_realtime_usec", 0)] * 2 + [("seek_cursor", first.encode())] * 2


def test_a_step_that_fails_persistently_is_an_error(library: Library) -> None:
    library.steps = [-errno.EBADMSG] * 1000
    with pytest.raises(HostError, match="sd_journal_next: Bad message"):
        JournalReader([]).next()


def test_any_other_failure_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdjournal, "_library", lambda: Library(-errno.EMFILE))
    with pytest.raises(HostError, match="sd_journal_get_monotonic_usec: Too many open files"):
        JournalReader([]).next()


def test_where_files_cannot_be_watched_they_are_opened_again_now_and_then(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, library.watch = JournalReader([]), -errno.EMFILE
    reader.seek_realtime(0)
    for now in (10.0, 10.5, 11.0, 11.5):
        monkeypatch.setattr(sdjournal, "monotonic", lambda now=now: now)
        assert reader.watch() is None
        reader.refresh()
    assert library.calls == [("seek_realtime_usec", 0)] * 2


def test_matches_are_as_journalctl_has_them(library: Library) -> None:
    JournalReader(["A=1", "B=2", "+", "C=3"])
    assert library.calls == [("add_match", b"A=1"), ("add_match", b"B=2"), ("add_disjunction",), ("add_match", b"C=3")]


def test_the_last_lines_follow_the_line_before_them(library: Library) -> None:
    reader = JournalReader([])
    library.skips = [-errno.EBADMSG, 3]
    reader.seek_last(2)
    assert library.calls == [("seek_tail",), ("seek_tail",), ("seek_cursor", b"s=1;i=4")]
    assert [line.position.cursor for line in iter(reader.next, None)] == ["s=1;i=1"], "without that line"


def test_the_last_lines_of_a_short_journal_are_all(library: Library) -> None:
    library.skips = [2]
    JournalReader([]).seek_last(2)
    assert library.calls == [("seek_tail",), ("seek_head",)]


def test_a_batch_that_reaches_the_end_has_the_lines_of_new_files(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = JournalReader([])
    monkeypatch.setattr(reader, "refresh", lambda: library.codes.extend((0, 0)))
    assert [line.position.cursor for line in reader.read_batch(3)] == [
        *("s=1;i=4", "s=1;i=1"),
        *("s=1;i=2", "s=1;i=1"),
    ]


@pytest.mark.parametrize(
    "line_break, ending", [(b"", b"\n"), (b"nul", b"\0"), (b"line-max", b""), (b"eof", b""), (b"pid-change", b"")]
)
def test_a_line_has_the_terminator_of_the_guest(line_break: bytes, ending: bytes) -> None:
    assert original_bytes(b"text", line_break) == b"text" + ending
