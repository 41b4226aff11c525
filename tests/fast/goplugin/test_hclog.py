"""Lines of the log as hclog has them, and Python's logging on the host's pipe."""

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solo5_systemd.goplugin import hclog
from solo5_systemd.goplugin.hclog import HostLog, LoggedOutput


def read(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    entry = json.loads(line)
    assert isinstance(entry, dict)
    return entry


def test_a_line_is_level_message_and_time() -> None:
    whole_second = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert read(hclog.log_line(level="warn", message="two\nlines", time=whole_second)) == {
        "@level": "warn",
        "@message": "two | lines",
        "@timestamp": "2026-01-02T03:04:05.000000Z",
    }


def test_a_long_traceback_keeps_how_it_begins_and_ends() -> None:
    traceback = "Traceback\n" + "x\n" * 100_000 + "ValueError"
    written = hclog.log_line(level="error", message="m", time=0, traceback=traceback)
    assert re.fullmatch(r"Traceback\n.* … .*ValueError", read(written)["traceback"], re.DOTALL)


@settings(max_examples=50)
@given(st.text(), st.text(), st.integers(0, 100_000), st.integers(0, 100_000))
def test_whatever_is_logged_the_host_can_read_it(message: str, traceback: str, longer: int, long: int) -> None:
    message, traceback = message + "\x01" * longer + "\udcff", traceback + "\x01" * long
    written = hclog.log_line(level="info", message=message, time=0, traceback=traceback)
    assert len(written) < 64 * 1024
    entry = read(written)
    assert all(isinstance(value, str) for value in entry.values())
    assert "\n" not in entry["@message"]


@dataclass(frozen=True)
class Pipe:
    reading: int
    writing: int

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines, up to end of file."""
        with open(self.reading, "rb", closefd=False) as read:
            return [json.loads(line) for line in read]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    yield Pipe(reading, writing)
    os.close(reading)


@pytest.fixture
def logger() -> logging.Logger:
    logger = logging.Logger("test", logging.NOTSET)
    logger.propagate = False
    return logger


@pytest.mark.parametrize(("number", "name"), [(10, "debug"), (20, "info"), (30, "warn"), (40, "error"), (50, "error")])
def test_levels_have_hclogs_names(pipe: Pipe, logger: logging.Logger, number: int, name: str) -> None:
    logger.addHandler(HostLog(pipe.writing))
    logger.log(number, "a line")
    os.close(pipe.writing)
    (entry,) = pipe.lines()
    assert entry["@level"] == name


def test_a_traceback_is_one_field_of_its_line(pipe: Pipe, logger: logging.Logger) -> None:
    logger.addHandler(HostLog(pipe.writing))
    try:
        os.stat("/nowhere")  # noqa: PTH116 - what raises does not matter
    except OSError:
        logger.exception("it failed")
    os.close(pipe.writing)
    (entry,) = pipe.lines()
    assert (entry["@level"], entry["@message"]) == ("error", "it failed")
    assert entry["traceback"].endswith("FileNotFoundError: [Errno 2] No such file or directory: '/nowhere'")


def test_lines_that_a_slow_host_leaves_no_room_for_are_counted(pipe: Pipe, logger: logging.Logger) -> None:
    logger.addHandler(HostLog(pipe.writing))
    for _ in range(100):
        logger.info("%s", "x" * 50_000)  # those of the pipe's size fit
    first = os.read(pipe.reading, 2 * hclog.PIPE_BYTES)
    logger.info("at last")
    os.close(pipe.writing)
    messages = [json.loads(line)["@message"] for line in (first + os.read(pipe.reading, 2**20)).splitlines()]
    *written, dropped, last = messages
    assert (last, {*written}) == ("at last", {"x" * 50_000})
    assert dropped.startswith(f"dropped {100 - len(written)} log lines before this one")


def test_a_host_that_is_gone_is_no_error(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    logger.addHandler(HostLog(writing))
    for _ in range(3):
        logger.info("to nobody")
    os.close(writing)
    assert capsys.readouterr().err == "", "where logging writes what went wrong in a handler"


def test_print_is_a_line_of_the_log_however_it_comes_in_pieces(caplog: pytest.LogCaptureFixture) -> None:
    print("one", 2, end="\n\nthr", file=LoggedOutput())
    stream = LoggedOutput()
    for piece in ("a", "b\n", "c"):
        stream.write(piece)
    assert caplog.messages == ["one 2", "ab"]
