"""Other programs that change links and packet filters, and the ways of a guest's packets beside them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.machine.conftest import Machine, Outside, Runner, address, cable, ok, sh
from tests.machine.plugin import fingerprinted
from tests.machine.test_network import web

WAYS = {"from here", "from outside", "to outside"}
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_PORT = "9999"


@dataclass(frozen=True)
class Program:
    """Another program, by its commands.

    Attributes:
        again: those after which its rules are as if it had just been started.
        last: those that end it.
        units: its units, for systemctl.
    """

    name: str
    first: Sequence[str]
    again: Sequence[str]
    last: Sequence[str]

    def do(self, commands: Sequence[str]) -> None:
        for command in commands:
            ok("sh", "-ec", command)


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
        tries = {"from here": self._from_here, "from outside": self._from_outside, "to outside": self._to_outside}
        with ThreadPoolExecutor() as pool:
            open_ = dict(zip(tries, pool.map(lambda each: each(), tries.values()), strict=True))
        return {name for name, is_open in open_.items() if is_open}

    def _from_here(self) -> bool:
        return "200 OK" in sh("curl", "-si", "--max-time", "2", f"http://{address(self.name)}/").stdout

    def _from_outside(self) -> bool:
        return (
            "200 OK" in self._outside.sh("curl", "-si", "--max-time", "2", f"http://{self._outside.here}:8080/").stdout
        )

    def _to_outside(self) -> bool:
        return heard(self._outside.there, "ip", "netns", "exec", self._outside.namespace) == self._outside.here


def heard(address: str, *before: str) -> str:
    """The sender of the next datagram that arrives at an address; empty where none comes within two seconds."""
    return ok(*before, "python3", "-I", "-c", _HEAR, address, _PORT)


_HEAR = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
s.settimeout(2)
try:
    print(s.recvfrom(100)[1][0], end="")
except TimeoutError:
    pass
"""


def doctor(name: str = "nftables") -> Mapping[str, str]:
    """A fact of `solo5ctl doctor`."""
    done = sh("solo5ctl", "doctor", "--json")
    return next(fact for fact in json.loads(done.stdout) if fact["name"] == name)


def on_the_node() -> str:
    """Return what the driver tells of other packet filters in the node's attributes; empty: nothing."""
    found = fingerprinted((), {})
    assert found.attributes, found.log
    return found.attributes.get("driver.solo5.networks.problem", "")


def remedy() -> str:
    """The command that the fact about packet filters names."""
    return doctor()["advice"].partition("are accepted: ")[2]
