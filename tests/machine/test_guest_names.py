"""The names of guests as docs/decisions/guest-names.md has an operator make them, from its own text."""

import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import Files, Runner, eventually, inspect, ok, sh
from tests.machine.test_network import GATEWAY, IPV4

PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "guest-names.md"
UNITS = ("guest-dns.service", "guest-names.service")


def files() -> dict[Path, str]:
    """Return the files of the page's blocks, each of which begins with a comment that has its path."""
    blocks = re.findall(r"^```(?:toml|python|ini)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^(?=# /etc/systemd)", block, flags=re.MULTILINE) if part]
    found = {}
    for part in parts:
        path = re.search(r"^# (/[^\s,]+)", part, re.MULTILINE)
        assert path is not None
        found[Path(path[1])] = part
    return found


@pytest.fixture
def named(place: Files) -> Iterator[None]:
    made = files()
    assert len(made) == 4
    for path, text in made.items():
        place(path, text, 0o755 if path.parent.name == "bin" else 0o644)
    ok("systemctl", "daemon-reload")
    ok("systemctl", "enable", "--now", *UNITS)
    yield
    sh("systemctl", "disable", "--now", *UNITS)
    Path("/run/guest-names").unlink(missing_ok=True)
    sh("systemctl", "reset-failed")


def address(name: str, server: str = "10.89.0.1") -> str:
    """Return the IPv4 address of a name, or the number of the error; empty without a reply."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    query = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        try:
            client.sendto(query, (server, 53))
            reply = client.recv(512)
        except OSError:
            return ""
    return socket.inet_ntoa(reply[-4:]) if reply[7] else str(reply[3] & 15)


def test_names_follow_the_starts_and_ends_of_tasks(named: None, run: Runner) -> None:
    one = run("net.hvt", IPV4, GATEWAY, name="one")
    given = inspect(one)["nics"][0]["ipv4"].partition("/")[0]
    eventually(lambda: address("one.guests.internal") == given, "its name is known")
    assert address("two.guests.internal") == "3", "no such name"
    two = run("net.hvt", IPV4, GATEWAY, name="two")
    given = inspect(two)["nics"][0]["ipv4"].partition("/")[0]
    eventually(lambda: address("two.guests.internal") == given, "the name of the second is known")
    ok("solo5ctl", "rm", "--force", one)
    eventually(lambda: address("one.guests.internal") == "3", "the name has gone")
    for _ in range(8):
        ok("solo5ctl", "rm", "--force", two, run("net.hvt", IPV4, GATEWAY, name="one"))
        two = run("net.hvt", IPV4, GATEWAY, name="two")
    given = inspect(two)["nics"][0]["ipv4"].partition("/")[0]
    eventually(lambda: address("two.guests.internal") == given, "the last of many changes at once is known")
    assert address("one.guests.internal") == "3"
