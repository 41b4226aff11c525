"""Read the journal's files in this process, through libsystemd: sd-journal(3).

`journalctl --follow` waits to be told of new lines, and journald tells at most four times a second; but it writes into
memory that its readers map, so whoever looks sees a line at once. And the end of the journal is a place that a reader
can know it has come to, which a pipe from journalctl never says.

Matches are ANDed where their fields differ. A reader is for one thread.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from functools import cache

from solo5_systemd.errors import HostError
from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.lines import Line, Place, restored
from solo5_systemd.unit.console import FACILITY, STDERR_PRIORITY, STDOUT_PRIORITY

LIBRARY = "libsystemd.so.0"
_LOCAL_ONLY = 1  # SD_JOURNAL_LOCAL_ONLY
_ENOENT = 2

_PRIORITIES = {Stream.STDOUT: STDOUT_PRIORITY, Stream.STDERR: STDERR_PRIORITY}

CONSOLES = (f"SYSLOG_FACILITY={FACILITY}", "_TRANSPORT=stdout")
"""Matches every line of every task."""


def console(unit: str, stream: Stream) -> tuple[str, ...]:
    """What matches the lines of one stream of one task."""
    return (*CONSOLES, f"_SYSTEMD_UNIT={unit}", f"PRIORITY={_PRIORITIES[stream]}")


class JournalReader:
    """The journal's lines that match, from where it has been put.

    Raises:
        HostError: the journal cannot be read.
    """

    def __init__(self, matches: Sequence[str]) -> None:
        self._journal = ctypes.c_void_p()
        self._call("open", ctypes.byref(self._journal), _LOCAL_ONLY, of=())
        for match in matches:
            self._call("add_match", match.encode(), 0)
        self._call("set_data_threshold", 0)

    def close(self) -> None:
        _library().sd_journal_close(self._journal)
        self._journal = ctypes.c_void_p()

    def watch(self) -> None:
        """Notice files that come and go; `refresh` has to be called now and then."""
        self._call("get_fd")

    def refresh(self) -> None:
        """Take notice of new files, and let go of removed ones."""
        self._call("process")

    def seek_end(self) -> Line | None:
        """Go behind the last line, which is returned if there is one."""
        self._call("seek_tail")
        if self._call("previous"):
            return self._line()
        # From the tail of nothing, nothing ever comes; and what will be the first line is after the head.
        self._call("seek_head")
        return None

    def lines_after(self, cursor: str) -> Iterator[Line]:
        """The lines behind this one, whether the journal still has it or not, as far as they are written."""
        self._call("seek_cursor", cursor.encode())
        line = self.next()
        while line is not None:
            if line.place.cursor != cursor:
                yield line
            line = self.next()

    def lines_from(self, realtime: int) -> Iterator[Line]:
        """The lines of this time (microseconds since the epoch) and later, as far as they are written."""
        self._call("seek_realtime_usec", realtime)
        while (line := self.next()) is not None:
            if line.realtime >= realtime:
                yield line

    def next(self) -> Line | None:
        """The next line; None where no more is written yet."""
        return self._line() if self._call("next") else None

    def _line(self) -> Line:
        return Line(
            unit=self._field(b"_SYSTEMD_UNIT").decode("utf-8", "replace"),
            stream=Stream.STDERR if self._field(b"PRIORITY") == b"%d" % STDERR_PRIORITY else Stream.STDOUT,
            data=restored(self._field(b"MESSAGE"), self._field(b"_LINE_BREAK")),
            place=Place(cursor=self._cursor(), monotonic=self._monotonic()),
            realtime=self._realtime(),
        )

    def _field(self, name: bytes) -> bytes:
        """A field's value, empty where the line has none."""
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        if self._call("get_data", name, ctypes.byref(data), ctypes.byref(size), absent=_ENOENT) < 0:
            return b""
        return ctypes.string_at(data.value or 0, size.value)[len(name) + 1 :]

    def _cursor(self) -> str:
        text = ctypes.c_void_p()
        self._call("get_cursor", ctypes.byref(text))
        try:
            return ctypes.string_at(text.value or 0).decode("ascii")
        finally:
            _library().free(text)

    def _monotonic(self) -> int:
        time, boot = ctypes.c_uint64(), (ctypes.c_uint8 * 16)()
        self._call("get_monotonic_usec", ctypes.byref(time), ctypes.byref(boot))
        return time.value

    def _realtime(self) -> int:
        time = ctypes.c_uint64()
        self._call("get_realtime_usec", ctypes.byref(time))
        return time.value

    def _call(self, function: str, *arguments: object, of: tuple[object, ...] | None = None, absent: int = 0) -> int:
        """Call sd_journal_FUNCTION(journal, …); `absent` is an errno that is an answer."""
        subject = (self._journal,) if of is None else of
        result: int = getattr(_library(), f"sd_journal_{function}")(*subject, *arguments)
        if result < 0 and -result != absent:
            raise HostError(
                f"the journal cannot be read: sd_journal_{function}: {os.strerror(-result)}.",
                "See: journalctl --verify",
            )
        return result


@cache
def _library() -> ctypes.CDLL:
    """libsystemd, with the types of those arguments that Python's own do not fit (sd-journal(3))."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise HostError(f"the journal cannot be read: {error}.", "Debian has it in libsystemd0.") from error
    library.sd_journal_close.argtypes = [ctypes.c_void_p]
    library.sd_journal_close.restype = None
    library.sd_journal_add_match.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    library.sd_journal_seek_realtime_usec.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.sd_journal_set_data_threshold.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.free.restype = None
    return library
