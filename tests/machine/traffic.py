"""A client that holds one connection to a guest from another host, and counts what does not come back."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.machine.conftest import Outside, eventually


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Everything since the client began.

    Attributes:
        echoed: messages that came back on the connection.
        broken: why the connection ended; empty while it lives.
        sent: datagrams, numbered and echoed besides.
        lost: those that did not come back.
    """

    echoed: int
    broken: str
    sent: int
    lost: int


class _Program:
    """A client at work, which answers each character with a line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def _counted(self, character: str) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        print(end=character, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the client has ended"
        return dict(json.loads(line))


class Traffic(_Program):
    """The client at work."""

    def tally(self) -> Tally:
        """Wait until all is back that was sent before, or is lost, and count."""
        return Tally(**self._counted("\n"))

    def goes_on(self) -> None:
        """The first connection is up, and messages come back on it."""
        before = self.tally()
        eventually(lambda: self.tally().echoed > before.echoed, "messages come back")
        assert self.tally().broken == ""

    def flows(self) -> Tally:
        """Nothing was ever lost, the connection is the first one, and more comes back."""
        before = self.tally()
        after = self.tally()
        assert (after.broken, after.lost) == ("", 0), after
        assert after.echoed > before.echoed, (before, after)
        return after


@dataclass(frozen=True, kw_only=True)
class Answers:
    """All requests since the client began.

    Attributes:
        longest: seconds that one of them took.
        failures: of the first lost ones: time of the begin, port, state of the socket (tcp(7)), and error.
    """

    answered: int
    refused: int
    reset: int
    lost: int
    longest: float
    failures: list[str]

    @property
    def failed(self) -> int:
        return self.refused + self.reset + self.lost


class Client(_Program):
    """A client with a steady rate of requests."""

    def tally(self) -> Answers:
        """Wait for the requests so far, and count."""
        return Answers(**self._counted("."))


@contextmanager
def _process(outside: Outside, program: str, *words: object) -> "Iterator[subprocess.Popen[str]]":
    file = str(Path(__file__).with_name(program))
    argv = [*outside.within, "python3", "-I", file, *map(str, words)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def requests(outside: Outside, host: str, port: int, rate: float, *most: int) -> Iterator[Client]:
    """So many requests a second to a published port while the block runs, each with a connection of its own.

    With `most`, no more than these are under way.
    """
    with _process(outside, "request_client.py", host, port, rate, *most) as process:
        yield Client(process)
        process.communicate(timeout=60)


@contextmanager
def traffic(outside: Outside, host: str, port: int, patience: float = 5) -> Iterator[Traffic]:
    """Traffic with the echo of a guest behind a published port, TCP and UDP, while the block runs.

    A datagram counts as lost after `patience` seconds.
    """
    with _process(outside, "echo_client.py", host, port, patience) as process:
        yield Traffic(process)
