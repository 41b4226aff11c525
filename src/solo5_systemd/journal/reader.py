"""Read the journal's files in this process, through libsystemd: sd-journal(3).

`journalctl --follow` waits to be told of new lines, and journald tells at most four times a second; but it writes into
memory that its readers map, so whoever looks sees a line at once. And the end of the journal is a place that a reader
can know it has come to, which a pipe from journalctl never says.

Matches are as journalctl(1) has them: ANDed where their fields differ, ORed where they are of one field, and "+"
between two such groups ORs the groups. A reader is for one thread.
"""

import ctypes
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache

from solo5_systemd.errors import HostError
from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.lines import Line, Place, notice, restored
from solo5_systemd.names import journald_of
from solo5_systemd.unit.log_fields import FACILITY, STDERR_PRIORITY, STDOUT_PRIORITY

LIBRARY = "libsystemd.so.0"
_LOCAL_ONLY = 1  # SD_JOURNAL_LOCAL_ONLY
_POINTER, _SIZE, _TIME = (ctypes.POINTER(each) for each in (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64))
_ARGUMENTS: Mapping[str, Sequence[type]] = {
    "add_disjunction": [],
    "add_match": [ctypes.c_char_p, ctypes.c_size_t],
    "close": [],
    "get_cursor": [_POINTER],
    "get_data": [ctypes.c_char_p, _POINTER, _SIZE],
    "get_fd": [],
    "get_monotonic_usec": [_TIME, ctypes.c_uint8 * 16],
    "get_realtime_usec": [_TIME],
    "next": [],
    "previous": [],
    "process": [],
    "seek_cursor": [ctypes.c_char_p],
    "seek_head": [],
    "seek_realtime_usec": [ctypes.c_uint64],
    "seek_tail": [],
    "set_data_threshold": [ctypes.c_size_t],
}
"""Of the functions `sd_journal_NAME`, after the journal itself."""

_OF_AN_ENTRY = frozenset({"get_cursor", "get_data", "get_monotonic_usec", "get_realtime_usec", "next", "previous"})
_GONE = frozenset({errno.EBADMSG, errno.EINVAL, errno.EADDRNOTAVAIL})
"""What these functions return of an entry whose file journald empties before it removes it. libsystemd reads an entry's
size twice, to check it and to use it: EINVAL where it became zero in between, as it does beside a guest that writes as
fast as it can. EADDRNOTAVAIL where the file was truncated, on a file system that has no holes."""

_SEARCHES = 100
"""For the same step: more than a journal has files that vanish during one."""

_PRIORITIES = {Stream.STDOUT: STDOUT_PRIORITY, Stream.STDERR: STDERR_PRIORITY}

CONSOLES = (f"SYSLOG_FACILITY={FACILITY}", "_TRANSPORT=stdout")
"""Matches every line of every task."""


def console(unit: str, stream: Stream) -> tuple[str, ...]:
    """What matches the lines of one stream of one task."""
    return (*CONSOLES, f"_SYSTEMD_UNIT={unit}", f"PRIORITY={_PRIORITIES[stream]}")


class JournalReader:
    """The journal's lines that match, from where it has been put.

    Args:
        matches: selects them.
        namespace: of the journal; empty: the host's.

    Raises:
        HostError: the journal cannot be read.
    """

    def __init__(self, matches: Sequence[str], namespace: str = "") -> None:
        self._journald = journald_of(namespace)
        self._journal = ctypes.c_void_p()
        self._data, self._size, self._time = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_uint64()
        self._boot = (ctypes.c_uint8 * 16)()
        self._sought: tuple[str, *tuple[object, ...]] = ("head",)
        self._last = ""
        name = namespace.encode() or None
        _check("open", _library().sd_journal_open_namespace(ctypes.byref(self._journal), name, _LOCAL_ONLY))
        for match in matches:
            if match == "+":
                self._call("add_disjunction")
            else:
                self._call("add_match", match.encode(), 0)
        self._call("set_data_threshold", 0)

    def close(self) -> None:
        _library().sd_journal_close(self._journal)
        self._journal = ctypes.c_void_p()

    def watch(self) -> int:
        """Notice files that come and go, if `refresh` is called now and then.

        Returns:
            A descriptor, the reader's own, that is readable until `refresh` when there is news: at once where a file
            was put aside or removed, four times a second at most where lines were written.
        """
        return self._call("get_fd")

    def refresh(self) -> None:
        """Take notice of new files, and let go of removed ones."""
        self._call("process")

    def seek_end(self) -> Line | None:
        """Go behind the last line, which is returned if there is one."""
        self._seek("tail")
        line = self._step("previous")
        if line is not None:
            return line
        # From the tail of nothing, nothing ever comes; and what will be the first line is after the head.
        self._seek("head")
        return None

    def last(self, count: int) -> list[Line]:
        """At most so many lines from the end, the newest first."""
        self._seek("tail")
        lines: list[Line] = []
        while len(lines) < count and (line := self._step("previous")) is not None:
            lines.append(line)
        return lines

    def last_with_ids(self, count: int) -> list[tuple[Line, str]]:
        """Return the same, each with its MESSAGE_ID=; empty where it has none."""
        self._seek("tail")
        lines: list[tuple[Line, str]] = []
        while len(lines) < count and (line := self._step("previous")) is not None:
            lines.append((line, self._text(b"MESSAGE_ID")))
        return lines

    def lines_after(self, cursor: str) -> Iterator[Line]:
        """The lines behind this one, whether the journal still has it or not, as far as they are written."""
        self._seek("cursor", cursor.encode())
        self._last = cursor
        return iter(self.next, None)

    def lines_from(self, realtime: int) -> Iterator[Line]:
        """The lines of this time (microseconds since the epoch) and later, as far as they are written."""
        self._seek("realtime_usec", realtime)
        while (line := self.next()) is not None:
            if line.realtime >= realtime:
                yield line

    def next(self) -> Line | None:
        """The next line; None where no more is written yet."""
        return self._step("next")

    def _step(self, direction: str) -> Line | None:
        """A line further. What cannot be read any more is passed over: journald empties the files that it removes."""
        while self._move(direction):
            with suppress(_UnreadableError):
                line = self._line()
                if line.place.cursor != self._last:
                    self._last = line.place.cursor
                    self._sought = ("cursor", self._last.encode())
                    return line
        return None

    def _move(self, direction: str) -> bool:
        """Go to the next entry of all files; whether there is one.

        libsystemd knows the next entry of each file beforehand, and fails where the file of the earliest was emptied
        since: again with every call. A search for the place where it stood reads each file, and drops that one.
        """
        for _ in range(_SEARCHES):
            with suppress(_UnreadableError):
                return bool(self._call(direction))
            self._call(f"seek_{self._sought[0]}", *self._sought[1:])
        return bool(self._call(direction))

    def _seek(self, place: str, *arguments: object) -> None:
        self._sought, self._last = (place, *arguments), ""
        self._call(f"seek_{place}", *arguments)

    def _line(self) -> Line:
        unit = self._text(b"_SYSTEMD_UNIT")
        if unit == self._journald:
            return self._notice()
        return Line(
            unit=unit,
            stream=Stream.STDERR if self._field(b"PRIORITY") == b"%d" % STDERR_PRIORITY else Stream.STDOUT,
            data=restored(self._field(b"MESSAGE"), self._field(b"_LINE_BREAK")),
            place=self._place(),
            realtime=self._realtime(),
        )

    def _notice(self) -> Line:
        """What journald says of lines that it left out: among the tender's words, for it is not the guest's."""
        count = _count(self._field(b"N_DROPPED"))
        return Line(
            unit=self._text(b"OBJECT_SYSTEMD_UNIT"),
            stream=Stream.STDERR,
            data=notice(count),
            place=self._place(),
            realtime=self._realtime(),
            left_out=count,
        )

    def _text(self, name: bytes) -> str:
        return self._field(name).decode("utf-8", "replace")

    def _place(self) -> Place:
        return Place(cursor=self._cursor(), monotonic=self._monotonic())

    def _field(self, name: bytes) -> bytes:
        """A field's value, empty where the line has none."""
        result = _library().sd_journal_get_data(self._journal, name, self._data, self._size)
        if result == -errno.ENOENT:
            return b""
        _check("get_data", result)
        return ctypes.string_at(self._data.value or 0, self._size.value)[len(name) + 1 :]

    def _cursor(self) -> str:
        self._call("get_cursor", self._data)
        try:
            return ctypes.string_at(self._data.value or 0).decode("ascii")
        finally:
            _library().free(self._data)

    def _monotonic(self) -> int:
        self._call("get_monotonic_usec", self._time, self._boot)
        return self._time.value

    def _realtime(self) -> int:
        self._call("get_realtime_usec", self._time)
        return self._time.value

    def _call(self, function: str, *arguments: object) -> int:
        return _check(function, getattr(_library(), f"sd_journal_{function}")(self._journal, *arguments))


class _UnreadableError(HostError):
    """This entry is damaged, or gone."""


def _count(text: bytes) -> int:
    """Return a number of 64 bits, 0 for what is none."""
    return int(text) if text.isdigit() and len(text) <= 20 else 0


def _check(function: str, result: int) -> int:
    if result < 0:
        is_gone = function in _OF_AN_ENTRY and -result in _GONE
        error = _UnreadableError if is_gone else HostError
        raise error(
            f"the journal cannot be read: sd_journal_{function}: {os.strerror(-result)}.",
            "See: journalctl --verify",
        )
    return result


@cache
def _library() -> ctypes.CDLL:
    """libsystemd, with the types of the arguments of what is used of it."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        from solo5_systemd.dependencies import blamed

        raise blamed(error) from error
    for name, arguments in _ARGUMENTS.items():
        getattr(library, f"sd_journal_{name}").argtypes = [ctypes.c_void_p, *arguments]
    library.sd_journal_close.restype = None
    library.free.argtypes = [ctypes.c_void_p]
    library.free.restype = None
    return library
