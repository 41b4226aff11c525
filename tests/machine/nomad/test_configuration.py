"""Each option of the plugin configuration of a real agent, set to an unusual value, by its effect."""

import json
import math
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.machine.conftest import GUESTS, Machine, eventually, inspect, ok, remove_namespace, sh, unit_property
from tests.machine.nomad.agent import DATA, PLAIN, SCOPES, USUAL, Agent, api
from tests.machine.nomad.jobs import ADDRESSES, TWO_STARTS, Allocation, Jobs, ended, hcl, network, newest, port_hcl

STORE = Path("/var/lib/solo5/images")
CLOSED = """
networks           = ["closed"]
stats_interval     = "3s"
allowed_properties = ["OOMScoreAdjust"]
allowed_tenders    = ["spt"]
image_store_mb     = 1
log_namespace      = "closed"
network "closed" {
  ipv4       = "10.97.0.0/24"
  gateway4   = "10.97.0.9"
  ipv6       = "2001:db8:97::/64"
  gateway6   = "2001:db8:97::9"
  nat66      = true
  ra         = true
  reserved_addresses = ["10.97.0.1-10.97.0.239"]
  bridge     = "closed0"
  mtu        = 1400
  masquerade = false
  routed     = true
  reach      = ["default"]
  isolated   = true
  host       = ["53/udp"]
  metadata   = true
  connections = 64
  fragments  = true
  rate       = ["sent=10M"]
  sleep      = false
  idle_min   = 600
  routes     = ["192.168.0.0/16"]
  dns        = ["192.0.2.53", "192.0.2.54"]
  search     = ["closed.example"]
}
network "listed" {
  ipv4   = "10.96.0.0/24"
  bridge = "listed0"
  egress = ["10.0.0.0/8", "192.0.2.7:53"]
}
defaults {
  tender         = "spt"
  logging        = "journald"
  quiet          = true
  cpu_hard_limit = true
  properties {
    TasksMax    = "11"
    LimitNOFILE = "300"
  }
}
ceilings {
  memory_mb = 64
  nics      = 1
  blocks    = 1
  ports     = 1
  image_mb  = 1
}
gc {
  interval  = "1s"
  image_age = "60s"
  tasks     = false
  dangling_tasks {
    enabled        = false
    period         = "1s"
    creation_grace = "10s"
  }
}
"""
OPEN = """
defaults {
  unit = "scope"
}
gc {
  enabled   = false
  interval  = "1s"
  image_age = "60s"
  tasks     = false
  dangling_tasks {
    period         = "1s"
    creation_grace = "10s"
    dry_run        = true
  }
}
"""
NUMBERED = 'block "storage{0}" {{\n  source = "local/{0}"\n}}\n'
LARGE = GUESTS / "large.spt"
CLOSED_NIC = 'nic "service" {\n  network = "closed"\n}\n'
HELLO = f'unikernel = "{GUESTS}/hello.spt"'
SLEEPER = f'unikernel = "{GUESTS}/sleeper.spt"'
SERVER = f'unikernel = "{GUESTS}/net.spt"\nargs = [{ADDRESSES}]\n'
PORTS = network(port_hcl("a", to=80), port_hcl("b", to=7))


closed = pytest.mark.configured(PLAIN + CLOSED)


@pytest.fixture(scope="module", autouse=True)
def namespace(booted: None) -> Iterator[None]:
    """The journal namespace of `closed`, removed at the end."""
    yield
    remove_namespace("closed")


@closed
def test_defaults_hold_where_the_job_leaves_an_option_out(agent: Agent, jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("defaulted", SLEEPER, resources="cpu = 500"))
    service = alloc.unit()
    assert service.endswith(".service")
    assert (unit_property(service, "TasksMax"), unit_property(service, "LimitNOFILE")) == ("11", "300")
    node = agent.about()["NodeResources"]["Cpu"]
    percent = math.ceil(100 * 500 / node["CpuShares"] * node["TotalCpuCores"])
    assert unit_property(service, "CPUQuotaPerSecUSec") == f"{percent * 10}ms", "of a job's `cpu = 500`"
    assert "--solo5:quiet" in unit_property(service, "ExecStart")
    journal = ("journalctl", "--no-pager", "--output=cat", f"_SYSTEMD_UNIT={service}")
    eventually(lambda: "sleeping" in ok(*journal, "--namespace=closed"), "the namespace has the console")
    assert "sleeping" not in ok(*journal)
    assert alloc.logs() == ""
    other = ended(jobs.submit(hcl("other-tender", f'unikernel = "{GUESTS}/sleeper.hvt"', kind="batch")))
    assert "tender spt cannot run" in other.refusal()


MANY = f'unikernel = "{GUESTS}/disks63.spt"\n' + "".join(map(NUMBERED.format, range(63)))
NAMED = f'unikernel = "{GUESTS}/disk.spt"\nblock "storage" {{\n  disk = "web-1"\n}}\n'
ELSEWHERE = SERVER + 'nic "service" {\n  network = "management"\n}\n'
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "memory": (SLEEPER, {"memory": 65}, "memory is 65M: expected at most 64M, this node's ceiling"),
    "memory-max": (SLEEPER, {"resources": "cpu = 20\nmemory_max = 65"}, "memory_max is 65M: expected at most 64M"),
    "nics": (
        f'unikernel = "{GUESTS}/net2.spt"',
        {},
        "the number of NICs is 2: expected at most 1, this node's ceiling",
    ),
    "disks": (MANY, {}, "the number of disks is 63: expected at most 1"),
    "named-disk": (NAMED, {}, "expected one that matches a pattern, and there is none"),
    "ports": (SERVER + CLOSED_NIC, {"group": TWO_STARTS + PORTS}, "the number of ports is 2: expected at most 1"),
    "network": (
        ELSEWHERE,
        {},
        "network management of NIC service is not allowed on this node: expected one of closed",
    ),
    "image": (
        f'unikernel = "{LARGE}"',
        {},
        "image '/srv/guests/large.spt' has 2097152 bytes: expected at most 1048576",
    ),
    "unit": (HELLO + '\nunit = "scope"\n', {}, "unit type scope is not allowed on this node: expected service."),
    "tender": (
        f'unikernel = "{GUESTS}/hello.hvt"\ntender = "hvt"',
        {},
        "tender hvt, which the image is built for, is not allowed on this node: expected spt",
    ),
    "property": (
        HELLO + '\nproperties {\n  TasksMax = "12"\n}\n',
        {},
        "config.properties.TasksMax may not be set by a job: expected one of OOMScoreAdjust",
    ),
}


@pytest.fixture
def large() -> Iterator[Path]:
    """An image file with the size of 2 MiB."""
    LARGE.write_bytes((GUESTS / "hello.spt").read_bytes())
    os.truncate(LARGE, 2 << 20)
    yield LARGE
    LARGE.unlink()


@closed
@pytest.mark.usefixtures("large")
def test_ceilings_networks_and_allowed_properties_refuse(jobs: Jobs) -> None:
    submitted = {
        what: jobs.submit(hcl(f"refused-{what}", config, kind="batch", **{"group": TWO_STARTS, **more}))
        for what, (config, more, _) in REFUSED.items()
    }
    read = {what: ended(job).refusal() for what, job in submitted.items()}
    assert {what: text for what, text in read.items() if REFUSED[what][2] not in text} == {}
    assert {what for what, text in read.items() if "unrecoverable" not in text} == set()


OPENED = {
    "routed": True,
    "reach": ["default"],
    "isolated": True,
    "host": ["53/udp"],
    "metadata": True,
    "connections": 64,
    "fragments": True,
    "rate": ["sent=10M"],
    "sleep": False,
    "idle_min": 600,
    "routes": ["192.168.0.0/16"],
}


@closed
def test_network_and_allowed_property_are_the_tasks(jobs: Jobs) -> None:
    config = SERVER + CLOSED_NIC + 'properties {\n  OOMScoreAdjust = "432"\n}\n'
    [alloc] = jobs.run(hcl("permitted", config, memory=64))
    about = inspect(alloc.name())
    [nic] = about["nics"]
    assert (nic["network"], nic["gateway4"], nic["mtu"]) == ("closed", "10.97.0.9", 1400)
    assert nic["ipv4"] in {f"10.97.0.{number}/24" for number in range(240, 255)}
    assert (nic["gateway6"], nic["ipv6"].endswith("/64")) == ("2001:db8:97::9", True)
    [bridge] = json.loads(ok("ip", "-json", "address", "show", "closed0"))
    assert {"10.97.0.9", "2001:db8:97::9"} <= {address["local"] for address in bridge["addr_info"]}
    [tap] = json.loads(ok("ip", "-json", "link", "show", nic["tap"]))
    assert (tap["master"], tap["mtu"]) == ("closed0", 1400)
    masqueraded = ok("nft", "list", "set", "ip", "solo5", "masqueraded")
    assert "10.97.0.0" not in masqueraded
    assert "2001:db8:97::/64" in ok("nft", "list", "set", "ip6", "solo5", "masqueraded")
    [opened] = json.loads(ok("solo5ctl", "network", "inspect", "--json", "closed"))
    assert {key: opened[key] for key in OPENED} == OPENED
    [listed] = json.loads(ok("solo5ctl", "network", "inspect", "--json", "listed"))
    assert listed["egress"] == ["10.0.0.0/8", "192.0.2.7:53"]
    assert Path(f"/proc/{unit_property(alloc.unit(), 'MainPID')}/oom_score_adj").read_text().strip() == "432"


@pytest.fixture
def stranger(machine: Machine) -> Iterator[list[str]]:
    """A unit of an allocation of this agent, without a task in the agent; its name is added by the test."""
    units: list[str] = []
    yield units
    sh("systemctl", "stop", *units)


def lose(alloc: Allocation, units: list[str]) -> str:
    units.append("solo5-task-lost.service")
    fields = ("NOMAD_ALLOC_ID=another", "NOMAD_TASK_NAME=guest", f"NOMAD_ALLOC_DIR={DATA}/alloc/{alloc}/alloc")
    said = (f"--property=LogExtraFields={field}" for field in fields)
    ok("systemd-run", "--quiet", f"--unit={units[0]}", *said, "sleep", "infinity")
    return units[0]


def unused() -> Path:
    """A stored image, unused for two minutes."""
    file = STORE / ("0" * 64)
    if not file.exists():
        file.write_bytes(b"unused")
    before = time.time() - 120
    os.utime(file, (before, before))
    return file


@closed
def test_unused_images_are_removed_and_no_unit_is_ended_where_that_is_disabled(jobs: Jobs, stranger: list[str]) -> None:
    [alloc] = jobs.run(hcl("present", SLEEPER))
    lost, since = lose(alloc, stranger), time.monotonic()
    while time.monotonic() - since < 12:  # longer than the grace period and a look
        image = unused()
        eventually(lambda image=image: not image.exists(), "the image is removed")  # type: ignore[misc]
    assert unit_property(lost, "ActiveState") == "active"
    images = {path.name for path in STORE.iterdir()}
    assert inspect(alloc.name())["image_sha256"] in images, "the image of a task that runs stays"


@pytest.mark.configured(PLAIN + SCOPES + OPEN)
def test_images_outcomes_and_lost_units_stay_where_that_is_chosen(
    agent: Agent, jobs: Jobs, machine: Machine, stranger: list[str]
) -> None:
    """Also: a task is a scope where that is the default."""
    machine.expect("would be stopped")
    [alloc] = jobs.run(hcl("scoped-by-default", SLEEPER))
    assert alloc.unit().endswith(".scope")
    wrong = f'{HELLO}\nproperties {{\n  LimitNOFILE = "64"\n}}'
    refused = ended(jobs.submit(hcl("no-scope", wrong, kind="batch"))).refusal()
    assert "unit property LimitNOFILE cannot be set for a scope" in refused
    kept = keep(jobs)
    image, lost = unused(), lose(alloc, stranger)
    named = "forgotten task lost would be stopped: Nomad's agent has no such task"
    eventually(lambda: named in agent.log(), "it is named")
    assert unit_property(lost, "ActiveState") == "active"
    assert image.exists(), "ten rounds of the collection are over"
    image.unlink()
    ok("solo5ctl", "rm", kept)
    assert kept not in ok("solo5ctl", "ps", "--all", "--quiet").split()
    agent.restart(USUAL)  # which retains nothing of the jobs


def keep(jobs: Jobs) -> str:
    """Run a service to its end and have Nomad destroy it; return the name of the retained task."""
    config = f'{HELLO}\nunit = "service"\nargs = ["exit=7"]'
    alloc = ended(jobs.submit(hcl("mortal", config, kind="batch")))
    kept = alloc.name()
    api("/v1/job/mortal?purge=true", "DELETE")
    eventually(lambda: collected(alloc), "Nomad has removed the allocation")
    about = inspect(kept)
    assert (about["phase"], about["outcome"]["exit_code"]) == ("ended", 7)
    assert about["log_fields"]["NOMAD_ALLOC_ID"] == alloc
    assert kept in ok("solo5ctl", "ps", "--all", "--quiet").split()
    assert "exit=7" in ok("solo5ctl", "logs", kept)
    assert kept in ok("solo5ctl", "gc", "--dry-run"), "its allocation is removed: gc would remove it"
    return kept


def collected(alloc: Allocation) -> bool:
    api("/v1/client/gc", "PUT")
    return not DATA.joinpath("alloc", alloc).exists()


DISK = 'block "storage" {{\n  source = "{}"\n}}\n'


def words(job: str, path: Path) -> str:
    """Return the error sentence in the events of a refused job, without the job's own names."""
    found = re.search(r"(image|disk storage:) '[^']*' (.*?\.)", ended(job).refusal())
    assert found, path
    return found[2].replace(newest(job), "")


def test_a_path_elsewhere_is_neither_opened_nor_revealed_to_exist(jobs: Jobs, tmp_path: Path) -> None:
    """Opening a FIFO would unblock its writer; an existing file has the same error as a missing one."""
    fifo, there, gone = (tmp_path / name for name in ("fifo", "there", "gone"))
    os.mkfifo(fifo)
    there.write_bytes(bytes(4096))
    with subprocess.Popen(["sh", "-c", f"exec 3>{fifo}"]) as writer:
        refused: dict[str, list[str]] = {"image": [], "disk": []}
        for path in (fifo, there, gone):
            config = {"image": f'unikernel = "{path}"', "disk": f'unikernel = "{GUESTS}/disk.spt"\n{DISK.format(path)}'}
            for what, text in config.items():
                jobs.submit(hcl(f"{what}-{path.name}", text, kind="batch"))
        for path in (fifo, there, gone):
            for what, seen in refused.items():
                seen.append(words(f"{what}-{path.name}", path))
        assert writer.poll() is None
        writer.kill()
    assert all("cannot be used: expected a file below" in text for seen in refused.values() for text in seen)
    assert [len(set(seen)) for seen in refused.values()] == [1, 1], refused
