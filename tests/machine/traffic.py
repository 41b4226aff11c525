"""A client that holds one connection to a guest from another host, and counts what does not come back."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.machine.conftest import Outside


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


class Traffic:
    """The client at work."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def tally(self) -> Tally:
        """Wait until all is back that was sent before, or is lost, and count."""
        assert self._process.stdin
        assert self._process.stdout
        print(file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the client has ended"
        return Tally(**json.loads(line))

    def flows(self) -> Tally:
        """Nothing was ever lost, the connection is the first one, and more comes back."""
        before = self.tally()
        after = self.tally()
        assert (after.broken, after.lost) == ("", 0), after
        assert after.echoed > before.echoed, (before, after)
        return after


@dataclass(frozen=True, kw_only=True)
class Answers:
    """All requests since the client began; `longest`: seconds that one of them took."""

    answered: int
    refused: int
    reset: int
    lost: int
    longest: float

    @property
    def failed(self) -> int:
        return self.refused + self.reset + self.lost


class Client:
    """A client with a steady rate of requests."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def tally(self) -> Answers:
        """Wait for the requests so far, and count."""
        assert self._process.stdin
        assert self._process.stdout
        print(end=".", file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the client has ended"
        return Answers(**json.loads(line))


@contextmanager
def requests(outside: Outside, host: str, port: int, rate: float) -> Iterator[Client]:
    """So many requests a second to a published port while the block runs, each with a connection of its own."""
    program = str(Path(__file__).with_name("request_client.py"))
    words = ["ip", "netns", "exec", outside.namespace, "python3", "-I", program, host, str(port), str(rate)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Client(process)
            process.communicate(timeout=60)
        finally:
            process.kill()


@contextmanager
def traffic(outside: Outside, host: str, port: int, patience: float = 5) -> Iterator[Traffic]:
    """Traffic with the echo of a guest behind a published port, TCP and UDP, while the block runs.

    A datagram counts as lost after `patience` seconds.
    """
    program = str(Path(__file__).with_name("echo_client.py"))
    words = ["ip", "netns", "exec", outside.namespace, "python3", "-I", program, host, str(port), str(patience)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Traffic(process)
        finally:
            process.kill()
