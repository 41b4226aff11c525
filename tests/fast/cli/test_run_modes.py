"""`run --dry-run`: prints the plan without starting the task."""

import json
import shlex

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.support.fakes.engine import FakeRuntime
from tests.support.fakes.images import stored
from tests.support.fakes.tasks import LEASE, PORTS

from solo5_systemd.base.names import Target, TaskName
from solo5_systemd.cli.run_modes import plain_value
from solo5_systemd.engine.plan import Plan
from solo5_systemd.network.model import Request, Reservation
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.tender import Parts, Tender

PLAN = Plan(
    parts=Parts(
        workload=Workload(name=TaskName("web"), image="/srv/web.hvt", arguments=("two words",), memory=64 << 20),
        image=stored(nics="service"),
        tender=Tender(path="/usr/bin/solo5-hvt", target=Target.HVT, version="0.12.1", abi_version=2),
        reservation=Reservation(task=TaskName("web"), leases=(LEASE,), ports=PORTS),
        user=61200,
        systemd=257,
    ),
    request=Request(),
    nft="add element a\nadd element b\n",
)

TEXT = """\
# command line
@COMMAND@

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
    unit, rest = result.out.split("\n\n", 1)
    assert (result.status, rest, result.err) == (0, TEXT.replace("@COMMAND@", shlex.join(PLAN.argv)), "")
    assert unit.startswith("# solo5-task-web.service\nDescription=Solo5 unikernel web.hvt (hvt)\n")
    assert {"MemoryMax=64M", "User=61200"} < set(unit.splitlines())
    assert len(unit.splitlines()) == 1 + len(PLAN.unit.properties)
    assert solo5ctl.engine.known == {}


def test_json(solo5ctl: Solo5ctl) -> None:
    document = json.loads(solo5ctl("run", "--dry-run", "--json", "web.hvt").out)
    assert document["unit"] == "solo5-task-web.service"
    assert list(document["properties"]) == [each.name for each in PLAN.unit.properties]
    assert "SOLO5_TASK=web" in document["properties"]["LogExtraFields"]
    assert document["argv"] == list(PLAN.argv)
    assert document["image"] == {"path": PLAN.parts.image.path, "sha256": PLAN.parts.image.sha256}
    assert document["tender"] == "/usr/bin/solo5-hvt"
    assert document["nft"] == PLAN.nft
    assert [nic["nic"] for nic in document["nics"]] == ["service"]
    assert [port["host_port"] for port in document["ports"]] == [8080, 53]


def test_bytes_become_text_for_json() -> None:
    assert plain_value([(b"A=\xff", True, 3, "s")]) == [["A=\\xff", True, 3, "s"]]
