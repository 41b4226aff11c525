"""Many guests on one network: more than a bridge of Linux has ports. `make many` starts 1,050."""

import json
import os
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.machine.conftest import GUESTS, Files, Machine, eventually, ok
from tests.machine.test_joined import SETTINGS

COUNT = int(os.environ.get("MANY", "6"))
SEGMENT = 1000
"""Guests of one bridge, which has at most 1023 ports."""


@pytest.fixture
def names(machine: Machine) -> Iterator[list[str]]:
    made = [f"many-{number}" for number in range(COUNT)]
    yield made
    for first in range(0, COUNT, 50):
        ok("solo5ctl", "rm", "--force", *made[first : first + 50], timeout=300)


def start(name: str) -> None:
    options = ("--name", name, "--memory", "16M", "--net", "service=wide")
    ok("solo5ctl", "run", "--detach", *options, f"{GUESTS}/net.spt", "{mirage}", timeout=300)


def answers(address: str) -> bool:
    with urllib.request.urlopen(f"http://{address}/", timeout=30) as answer:
        return bool(answer.status == 200)


@pytest.mark.timeout(7200)
def test_each_of_many_guests_of_a_network_answers(place: Files, names: list[str]) -> None:
    place(SETTINGS, '[network.wide]\nipv4 = "10.96.0.0/20"\n')
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, names))
    tasks = json.loads(ok("solo5ctl", "ps", "--json", timeout=120))
    addresses = [each["nics"][0]["ipv4"].partition("/")[0] for each in tasks if each["name"] in names]
    assert len(set(addresses)) == COUNT
    for address in addresses:
        eventually(lambda address=address: answers(address), f"{address} answers")  # type: ignore[misc]
    links = json.loads(ok("ip", "-json", "link"))
    bridges = {link["master"] for link in links if link["ifname"].startswith("s5-")}
    assert len(bridges) == -(-COUNT // SEGMENT), "as many segments as they need"
    print(f"{COUNT} guests of one network answer, on {len(bridges)} bridges")
