"""Other programs that change links and packet filters, and the ways of a guest's packets beside them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.machine.conftest import Machine, Outside, Runner, address, cable, heard, ok, sh
from tests.machine.plugin import fingerprinted
from tests.machine.test_network import web

WAYS = {"from here", "from outside", "to outside"}
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_PORT = 9999


@dataclass(frozen=True)
class Program:
    """Another program, by its commands.

    Attributes:
        again: those after which its rules are as if it had just been started.
    """

    name: str
    first: Sequence[str]
    again: Sequence[str]
    last: Sequence[str]

    def do(self, commands: Sequence[str]) -> None:
        for command in commands:
            ok("sh", "-ec", command)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Undo what it has done, after the block."""
        try:
            yield
        finally:
            self.do(self.last)


@pytest.fixture
def cleared(machine: Machine) -> Iterator[None]:
    """Whatever rules, links and settings the other program leaves are removed."""
    forward = FORWARD.read_text()
    links = _links()
    yield
    for line in ok("nft", "list", "tables").splitlines():
        _, family, table = line.split()
        sh("nft", "delete", "table", family, table)  # one of ours has an owner
    for link in _links() - links:
        sh("ip", "link", "delete", link)
    FORWARD.write_text(forward)


def _links() -> set[str]:
    return {each["ifname"] for each in json.loads(ok("ip", "-json", "link"))}


@pytest.fixture
def outside(cleared: None) -> Iterator[Outside]:
    """The link to it is there before and after all other programs."""
    with cable(Outside()) as other:
        yield other


class Guest:
    """A guest that serves TCP 80, published as 8080, and sends to the outside five times a second."""

    def __init__(self, run: Runner, outside: Outside) -> None:
        self._outside = outside
        self.name = web(run, f"--send={outside.there}:{_PORT}", options=("-p", "8080:80"))

    def ways(self) -> set[str]:
        """Return the open ones of WAYS."""
        here = self._outside.here
        tries = {
            "from here": lambda: serves(sh, address(self.name)),
            "from outside": lambda: serves(self._outside.sh, f"{here}:8080"),
            "to outside": lambda: heard(self._outside.there, _PORT, 2, *self._outside.within) == here,
        }
        with ThreadPoolExecutor() as pool:
            open_ = dict(zip(tries, pool.map(lambda each: each(), tries.values()), strict=True))
        return {name for name, is_open in open_.items() if is_open}


def serves(shell: Callable[..., CompletedProcess[str]], host: str) -> bool:
    return "200 OK" in shell("curl", "-si", "--max-time", "2", f"http://{host}/").stdout


def doctor() -> Mapping[str, str]:
    """What `solo5ctl doctor` has of packet filters."""
    done = sh("solo5ctl", "doctor", "--json")
    return next(fact for fact in json.loads(done.stdout) if fact["name"] == "nftables")


def on_the_node() -> str:
    """Return what the driver tells of other packet filters in the node's attributes; empty: nothing."""
    found = fingerprinted((), {})
    assert found.attributes, found.log
    return found.attributes.get("driver.solo5.networks.problem", "")


def remedy() -> str:
    """The command that the fact about packet filters names."""
    return doctor()["advice"].partition("are accepted: ")[2]
