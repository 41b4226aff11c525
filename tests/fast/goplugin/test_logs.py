import json
import logging
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from solo5_systemd.goplugin import hclog
from solo5_systemd.goplugin.hclog import HostLog, LoggedOutput


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
