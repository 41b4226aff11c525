"""Reads journal files in this process, through libsystemd: sd-journal(3); follows them in batches.

Why not by journalctl(1): docs/decisions/journal-reader.md.
"""

import ctypes
import errno
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

from solo5_systemd.base.dependencies import dependency_error
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.event_loop import pause
from solo5_systemd.base.names import journald_of
from solo5_systemd.journal.lines import JournalPosition, Line, Stream, original_bytes
from solo5_systemd.task.log_fields import FACILITY, STDERR_PRIORITY, STDOUT_PRIORITY

if TYPE_CHECKING:
    import asyncio

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
    "has_persistent_files": [],
    "has_runtime_files": [],
    "next": [],
    "previous": [],
    "previous_skip": [ctypes.c_uint64],
    "process": [],
    "seek_cursor": [ctypes.c_char_p],
    "seek_head": [],
    "seek_realtime_usec": [ctypes.c_uint64],
    "seek_tail": [],
    "set_data_threshold": [ctypes.c_size_t],
}
"""Argument types of the functions `sd_journal_NAME`, after the sd_journal*."""

_ENTRY_FUNCTIONS = frozenset(
    {"get_cursor", "get_data", "get_monotonic_usec", "get_realtime_usec", "next", "previous", "previous_skip"}
)
_UNREADABLE = frozenset({errno.EBADMSG, errno.EINVAL, errno.EADDRNOTAVAIL})
"""Errors of _ENTRY_FUNCTIONS for an entry in a file that journald is removing, which it empties first. libsystemd reads
an entry's size twice, to check it and to use it: EINVAL if it became zero in between, as it does next to a guest that
writes at full speed. EADDRNOTAVAIL if the file was truncated, on a file system without holes."""

BATCH_LINES = 100
"""Lines to read before other tasks of an event loop run: some 4 ms."""

BUSY_INTERVAL_S = 0.02
"""Between two polls of a journal without new lines; a poll takes some 30 µs.

journald writes into mapped files, where a poll finds a line at once. It signals new lines by inotify at most four times
a second.
"""

IDLE_INTERVAL_S = 0.25
"""The same after a while without new lines: no longer than journald's signal takes at most."""

REOPEN_INTERVAL_S = 1.0
"""Between two looks for new files where they cannot be watched. Lines of files that are open need none."""

SILENT_AFTER_POLLS = 40
"""Polls without a new line, some ten seconds, after which a timer with a `silent_interval_s` relies on the signal."""

_MAX_SEEKS = 100
"""Seeks in one step; more than the number of files that are removed during it."""

_PRIORITIES = {Stream.STDOUT: STDOUT_PRIORITY, Stream.STDERR: STDERR_PRIORITY}

CONSOLE_MATCHES = (f"SYSLOG_FACILITY={FACILITY}", "_TRANSPORT=stdout")
"""Matches the console lines of all tasks."""


def console_matches(unit: str, stream: Stream) -> tuple[str, ...]:
    """Return the matches for one stream of one task."""
    return (*CONSOLE_MATCHES, f"_SYSTEMD_UNIT={unit}", f"PRIORITY={_PRIORITIES[stream]}")


class JournalReader:
    """A reader of the lines of a journal that match, with a current position; to be used by one thread.

    Args:
        matches: as in journalctl(1): ANDed if their fields differ, ORed if they have the same field; "+" ORs the groups
            before and after it.
        namespace: empty: the host's journal.

    Raises:
        HostError: (each method) the journal cannot be read.
    """

    def __init__(self, matches: Sequence[str], namespace: str = "") -> None:
        self._journald = journald_of(namespace)
        self._journal = ctypes.c_void_p()
        self._library = _library()
        self._matches, self._namespace = matches, namespace
        self._reopened: float | None = None  # None: it is not, since files are watched, or it is not followed
        self._data, self._size, self._time = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_uint64()
        self._boot = (ctypes.c_uint8 * 16)()
        self._sought: tuple[str, *tuple[object, ...]] = ("head",)
        self._last = ""
        self._open()

    def _open(self) -> None:
        name = self._namespace.encode() or None
        _check("open", self._library.sd_journal_open_namespace(ctypes.byref(self._journal), name, _LOCAL_ONLY))
        for match in self._matches:
            if match == "+":
                self._call("add_disjunction")
            else:
                self._call("add_match", match.encode(), 0)
        self._call("set_data_threshold", 0)

    def close(self) -> None:
        """Close the journal."""
        self._library.sd_journal_close(self._journal)
        self._journal = ctypes.c_void_p()

    def watch(self) -> int | None:
        """Watch for new and removed files; `refresh` has to be called regularly from now on (sd_journal_get_fd(3)).

        Returns the reader's descriptor, readable until the next `refresh`: at once if a file was archived or removed,
        and at most four times a second if lines were written. None: the user has no instance of inotify(7) left, of 128
        by default, which root has in common with all of its programs.
        """
        if self._reopened is None:
            with suppress(HostError):
                return self._call("get_fd")
            self._reopened = monotonic()
        return None

    def refresh(self) -> None:
        """Open new files and close removed ones (sd_journal_process(3)), without a watch at an interval only."""
        if self._reopened is None:
            self._call("process")
        elif monotonic() >= self._reopened + REOPEN_INTERVAL_S:
            self.close()
            self._open()
            self._seek_again()
            self._reopened = monotonic()

    @property
    def has_files(self) -> bool:
        """The process may read at least one of the journal's files, and there is one."""
        return bool(self._call("has_runtime_files") or self._call("has_persistent_files"))

    def read_batch(self, size: int) -> list[Line]:
        """Return the next lines; fewer than `size` at the end of the journal, whose new files are opened then."""
        lines = list(islice(iter(self.next, None), size))
        if len(lines) < size:
            # Only at the end of the files: `refresh` closes removed files. A new file may have further lines.
            self.refresh()
            lines.extend(islice(iter(self.next, None), size))
        return lines

    def seek_realtime(self, realtime: int) -> None:
        """Seek to a time (µs since the epoch); earlier lines may follow if the clock was set back."""
        self._seek("realtime_usec", realtime)

    def seek_after(self, cursor: str) -> None:
        """Seek to the line after that of a cursor, which may have been removed."""
        self._seek("cursor", cursor.encode())
        self._last = cursor

    def seek_last(self, count: int) -> None:
        """Seek before the last `count` lines."""
        self._seek("tail")
        # The line before them: the position to which `_move` returns if a file is removed.
        if self._move("previous_skip", count + 1) > count:
            with suppress(_UnreadableError):
                self.seek_after(self._cursor())
                return
        self._seek("head")

    def last(self, count: int) -> list[tuple[Line, str]]:
        """Return at most `count` lines from the end, newest first, each with its MESSAGE_ID=; empty if it has none."""
        self._seek("tail")
        lines: list[tuple[Line, str]] = []
        while len(lines) < count and (line := self._step("previous")) is not None:
            lines.append((line, self._text(b"MESSAGE_ID")))
        if not lines:  # sd_journal_next() after a seek to the tail would never return a line that is added later
            self._seek("head")
        return lines

    def next(self) -> Line | None:
        """Return the next line; None at the end of the journal."""
        return self._step("next")

    def _step(self, direction: str) -> Line | None:
        """Return the next line in a direction; entries of files that are being removed are skipped."""
        while self._move(direction):
            with suppress(_UnreadableError):
                line = self._line()
                if line.position.cursor != self._last:  # a seek to a cursor returns its line again
                    self._last = line.position.cursor
                    self._sought = ("cursor", self._last.encode())
                    return line
        return None

    def _move(self, direction: str, *arguments: object) -> int:
        """Move to the next entry, or over several; return the number of entries.

        libsystemd caches the next entry of each file. If the file of the earliest one was emptied since, this and every
        later call fails. Seeking to the last position again reads all files, and drops that one.
        """
        for _ in range(_MAX_SEEKS):
            with suppress(_UnreadableError):
                return self._call(direction, *arguments)
            self._seek_again()
        return self._call(direction, *arguments)

    def _seek(self, target: str, *arguments: object) -> None:
        self._sought, self._last = (target, *arguments), ""
        self._seek_again()

    def _seek_again(self) -> None:
        """Seek to the last line, or to what was sought since."""
        target, *arguments = self._sought
        self._call(f"seek_{target}", *arguments)

    def _line(self) -> Line:
        unit = self._text(b"_SYSTEMD_UNIT")
        is_notice = unit == self._journald  # its message about lines that it dropped
        is_stderr = is_notice or self._field(b"PRIORITY") == b"%d" % STDERR_PRIORITY
        cursor = self._cursor()
        self._call("get_monotonic_usec", self._time, self._boot)
        position = JournalPosition(cursor=cursor, monotonic=self._time.value)
        self._call("get_realtime_usec", self._time)
        return Line(
            unit=self._text(b"OBJECT_SYSTEMD_UNIT") if is_notice else unit,
            stream=Stream.STDERR if is_stderr else Stream.STDOUT,
            data=b"" if is_notice else original_bytes(self._field(b"MESSAGE"), self._field(b"_LINE_BREAK")),
            position=position,
            realtime=self._time.value,
            dropped=_count(self._field(b"N_DROPPED")) if is_notice else 0,
        )

    def _text(self, name: bytes) -> str:
        return self._field(name).decode("utf-8", "replace")

    def _field(self, name: bytes) -> bytes:
        """Return the value of a field; empty if the line does not have it."""
        result = self._library.sd_journal_get_data(self._journal, name, self._data, self._size)
        if result == -errno.ENOENT:
            return b""
        _check("get_data", result)
        start = len(name) + 1
        return ctypes.string_at((self._data.value or 0) + start, self._size.value - start)

    def _cursor(self) -> str:
        self._call("get_cursor", self._data)
        try:
            return ctypes.string_at(self._data.value or 0).decode("ascii")
        finally:
            self._library.free(self._data)

    def _call(self, function: str, *arguments: object) -> int:
        return _check(function, getattr(self._library, f"sd_journal_{function}")(self._journal, *arguments))


class _UnreadableError(HostError):
    """The entry is damaged, or its file is being removed."""


def _count(text: bytes) -> int:
    """Return a decimal number of at most 20 digits; 0 for anything else."""
    return int(text) if text.isdigit() and len(text) <= 20 else 0


def _check(function: str, result: int) -> int:
    if result < 0:
        is_unreadable = function in _ENTRY_FUNCTIONS and -result in _UNREADABLE
        error = _UnreadableError if is_unreadable else HostError
        raise error(
            f"the journal cannot be read: sd_journal_{function}: {os.strerror(-result)}.",
            "See: journalctl --verify",
        )
    return result


@cache
def _library() -> ctypes.CDLL:
    """Return libsystemd, with the argument types of the functions in use."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise dependency_error(error) from error
    for name, arguments in _ARGUMENTS.items():
        getattr(library, f"sd_journal_{name}").argtypes = [ctypes.c_void_p, *arguments]
    library.sd_journal_close.restype = None
    library.free.argtypes = [ctypes.c_void_p]
    library.free.restype = None
    return library


class PollTimer:
    """The wait between two polls of journals: doubled with each poll that found no line, up to a limit.

    Args:
        silent_interval_s: seconds of a wait after `SILENT_AFTER_POLLS`; None: as of the longest one before.
    """

    def __init__(
        self,
        poll_interval_s: float = BUSY_INTERVAL_S,
        idle_interval_s: float = IDLE_INTERVAL_S,
        silent_interval_s: float | None = None,
    ) -> None:
        self._shortest_s, self._longest_s = poll_interval_s, idle_interval_s
        self._silent_s = silent_interval_s or idle_interval_s
        self._next_s = poll_interval_s
        self._polls = 0
        self._long_wait: asyncio.Future[None] | None = None

    def restart(self) -> None:
        """Begin with the shortest wait again, after a line or for a new console; a longer wait ends now."""
        if self._long_wait is not None:
            _wake(self._long_wait)
        self._next_s, self._polls = self._shortest_s, 0

    async def wait(self, watched: Iterable[int | None]) -> None:
        """Return when journald has signalled a change by one of these descriptors, or after the interval.

        It signals an archived file at once, which may be removed within milliseconds, as by
        `journalctl --rotate --vacuum-files=1`: without the descriptors, its last lines could be lost between two polls.
        """
        import asyncio  # imported here for startup time: lines that are there are read without a loop

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self._long_wait = woken if self._next_s > self._shortest_s else None
        timer = loop.call_later(self._next_s, _wake, woken)
        self._polls += 1
        is_silent = self._polls >= SILENT_AFTER_POLLS
        self._next_s = self._silent_s if is_silent else min(self._next_s * 2, self._longest_s)
        fds = [fd for fd in watched if fd is not None]
        for fd in fds:
            loop.add_reader(fd, _wake, woken)
        try:
            await woken
        finally:
            self._long_wait = None
            timer.cancel()
            for fd in fds:
                loop.remove_reader(fd)


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


async def batches(
    journal: JournalReader, size: int, until: Callable[[], bool] | None = None, timer: PollTimer | None = None
) -> AsyncGenerator[list[Line], None]:
    """Yield the lines from the reader's position on in batches, which may be empty. Other tasks run between two.

    `until` returns whether all lines to come are in the journal already; None: they are; do not wait.
    """
    timer = timer or PollTimer()
    while True:
        # Before the lines are read: those that are written in between belong to the next batch.
        is_last = until is None or until()
        lines = journal.read_batch(size)
        yield lines
        if lines:
            timer.restart()
        if len(lines) >= size:
            await pause()
        elif is_last:
            return
        else:
            await timer.wait((journal.watch(),))
