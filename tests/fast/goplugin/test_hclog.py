"""Lines of the log as hclog has them, and Python's logging on the host's pipe."""

import json
import logging
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


def line(message: str = "started", **fields: object) -> bytes:
    return hclog.log_line(level="info", message=message, time=0, fields=fields)


def test_a_line_is_level_message_time_and_fields() -> None:
    whole_second = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    written = hclog.log_line(level="warn", message="slow", time=whole_second, fields={"task": "web"})
    assert read(written) == {
        "@level": "warn",
        "@message": "slow",
        "@timestamp": "2026-01-02T03:04:05.000000Z",
        "task": "web",
    }


def test_numbers_travel_as_text_lest_the_host_print_them_as_floats() -> None:
    entry = read(line(count=1_000_000, share=float("nan"), full=True, none=None))
    assert (entry["count"], entry["share"], entry["full"], entry["none"]) == ("1000000", "nan", "true", "None")


def test_no_field_can_pose_as_one_of_the_hosts_own() -> None:
    written = hclog.log_line(level="info", message="m", time=0, fields={"@message": 7, "@": 8, "@@level": 9})
    entry = read(written)
    assert (entry["@message"], entry["@level"]) == ("m", "info")
    assert (entry["message"], entry["at"], entry["level"]) == ("7", "8", "9")


def test_a_long_value_keeps_how_it_begins_and_ends() -> None:
    written = line(traceback="Traceback\n" + "x\n" * 100_000 + "ValueError")
    assert len(written) < 64 * 1024
    assert re.fullmatch(r"Traceback\n.* … .*ValueError", read(written)["traceback"], re.DOTALL)


@given(st.text(), st.dictionaries(st.text(), st.one_of(st.text(), st.binary(), st.integers(), st.floats())))
def test_whatever_is_logged_the_host_can_read_it(message: str, fields: dict[str, object]) -> None:
    entry = read(hclog.log_line(level="info", message=message + "\udcff", time=0, fields=fields))
    assert all(isinstance(entry[key], str) for key in ("@level", "@message", "@timestamp"))
    assert "\n" not in entry["@message"]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 100_000), max_size=3))
def test_no_line_is_longer_than_the_host_reads(lengths: list[int]) -> None:
    fields = {f"field{number}": "\x01" * length for number, length in enumerate(lengths)}
    assert len(line(**fields)) < 64 * 1024


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


@pytest.mark.parametrize(
    ("number", "name"), [(5, "trace"), (10, "debug"), (20, "info"), (30, "warn"), (40, "error"), (50, "error")]
)
def test_levels_have_hclogs_names(pipe: Pipe, logger: logging.Logger, number: int, name: str) -> None:
    handler = HostLog(pipe.writing)
    logger.addHandler(handler)
    logger.log(number, "a line")
    handler.close()
    os.close(pipe.writing)
    (entry,) = pipe.lines()
    assert entry["@level"] == name


def test_a_traceback_is_one_field_of_its_line(pipe: Pipe, logger: logging.Logger) -> None:
    handler = HostLog(pipe.writing)
    logger.addHandler(handler)
    try:
        os.stat("/nowhere")  # noqa: PTH116 - what raises does not matter
    except OSError:
        logger.exception("it failed", extra={"fields": {"task": "web"}})
    handler.close()
    os.close(pipe.writing)
    (entry,) = pipe.lines()
    assert (entry["@level"], entry["@message"], entry["task"]) == ("error", "it failed", "web")
    assert entry["traceback"].endswith("FileNotFoundError: [Errno 2] No such file or directory: '/nowhere'")


def test_lines_that_a_slow_host_leaves_no_room_for_are_counted(
    pipe: Pipe, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hclog, "QUEUE_LINES", 3)
    handler = HostLog(pipe.writing)
    logger.addHandler(handler)
    for number in range(20):
        logger.info("%d", number, extra={"fields": {"long": "x" * 50_000}})  # two fill the pipe
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(pipe.lines)
        handler.close()
        os.close(pipe.writing)
        messages = [entry["@message"] for entry in reading.result()]
    written = [message for message in messages if message.isdecimal()]
    lost = [
        int(found[1])
        for message in messages
        if (found := re.search(r"dropped (\d+) log lines before this one", message))
    ]
    assert lost
    assert len(written) + sum(lost) == 20


def test_a_host_that_is_gone_is_no_error(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = HostLog(writing)
    logger.addHandler(handler)
    for _ in range(3):
        logger.info("to nobody")
    handler.close()
    os.close(writing)
    assert capsys.readouterr().err == "", "where logging writes what went wrong in a handler"


def test_print_is_a_line_of_the_log_however_it_comes_in_pieces(caplog: pytest.LogCaptureFixture) -> None:
    print("one", 2, end="\n\nthr", file=LoggedOutput())
    stream = LoggedOutput()
    for piece in ("a", "b\n", "c"):
        stream.write(piece)
    assert caplog.messages == ["one 2", "ab"]
