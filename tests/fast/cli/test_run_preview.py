"""`run --dry-run`: prints the plan without starting the task."""

import json

import pytest
from tests.fakes.engine import FakeRuntime
from tests.fakes.tasks import LEASE, PORTS
from tests.fast.cli.conftest import Solo5ctl

from solo5_systemd.cli.run_preview import plain_value
from solo5_systemd.engine.start import Plan
from solo5_systemd.image.manifest import ImageFacts, Manifest, StoredImage, Target
from solo5_systemd.names import TaskName
from solo5_systemd.network.model import Reservation
from solo5_systemd.unit.properties import Property, TransientUnit
from solo5_systemd.unit.tender import Tender

PLAN = Plan(
    unit=TransientUnit(
        name="solo5-task-web.service",
        properties=(
            Property("Description", "s", "Solo5 unikernel web.hvt (hvt)"),
            Property("MemoryMax", "t", 64 << 20),
            Property("LogExtraFields", "aay", [b"SOLO5_TASK=web"]),
        ),
    ),
    argv=("/usr/bin/solo5-hvt", "--mem=54", "--", "/store/abc", "two words"),
    reservation=Reservation(task=TaskName("web"), leases=(LEASE,), ports=PORTS),
    nft="add element a\nadd element b\n",
    image=StoredImage(
        path="/store/abc",
        sha256="abc",
        size=1,
        facts=ImageFacts(
            manifest=Manifest(target=Target.HVT, abi_version=2), entry=0x100000, load_end=1 << 20, memory_end=1 << 20
        ),
    ),
    tender=Tender(path="/usr/bin/solo5-hvt", target=Target.HVT, version="0.12.1", abi_version=2),
)

TEXT = """\
# solo5-task-web.service
Description=Solo5 unikernel web.hvt (hvt)
MemoryMax=64M
LogExtraFields=SOLO5_TASK=web

# command line
/usr/bin/solo5-hvt --mem=54 -- /store/abc 'two words'

# leases
service on default: 10.89.0.2/24, gateway 10.89.0.1, MAC 02:00:5e:10:00:01, MTU 1500, s5-1f00c0de in solo5-default

# ports
0.0.0.0:8080->80/tcp (service)
127.0.0.1:53->53/udp (service)

# nftables
add element a
add element b
"""


@pytest.fixture
def engine() -> FakeRuntime:
    engine = FakeRuntime()
    engine.plan = PLAN
    return engine


def test_text(solo5ctl: Solo5ctl) -> None:
    result = solo5ctl("run", "--dry-run", "--name", "web", "web.hvt", "two words")
    assert (result.status, result.out, result.err) == (0, TEXT, "")
    assert solo5ctl.engine.known == {}


def test_json(solo5ctl: Solo5ctl) -> None:
    document = json.loads(solo5ctl("run", "--dry-run", "--json", "web.hvt").out)
    assert document["unit"] == "solo5-task-web.service"
    assert document["properties"]["LogExtraFields"] == ["SOLO5_TASK=web"]
    assert document["argv"] == list(PLAN.argv)
    assert document["image"] == {"path": "/store/abc", "sha256": "abc"}
    assert document["tender"] == "/usr/bin/solo5-hvt"
    assert document["nft"] == PLAN.nft
    assert [nic["nic"] for nic in document["nics"]] == ["service"]
    assert [port["host_port"] for port in document["ports"]] == [8080, 53]


def test_bytes_become_text_for_json() -> None:
    assert plain_value([(b"A=\xff", True, 3, "s")]) == [["A=\\xff", True, 3, "s"]]
