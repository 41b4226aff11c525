"""The example jobs run."""

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Outside, eventually, inspect, ok, sh
from tests.machine.nomad.agent import DISKS, NODE_ADDRESS, PLAIN, SCOPES, Agent
from tests.machine.nomad.jobs import Allocation, Jobs, allocations, deployment, ended, registered, running
from tests.machine.nomad.test_deployments import succeeds, versions

EXAMPLES = Path(__file__).parents[3] / "examples/nomad"
LINES = [
    line.removeprefix("#   ")
    for example in ("disks", "dual-stack", "lan")
    for line in (EXAMPLES / f"{example}.nomad.hcl").read_text().splitlines()
    if line.startswith("#   ")
]
"""The plugin configuration that the comments of examples have."""

pytestmark = pytest.mark.configured("\n".join((f"{PLAIN}{SCOPES}", *LINES, "")))


def submit(jobs: Jobs, example: str, name: str, *options: str) -> None:
    jobs.expect(name)
    ok("nomad", "job", "run", "-detach", *options, str(EXAMPLES / f"{example}.nomad.hcl"))


def completes(name: str, text: str) -> None:
    """A job's task ends with success, and has written to its log."""
    alloc = ended(name)
    assert alloc.about()["ClientStatus"] == "complete", alloc.status()
    eventually(lambda: text in ok("nomad", "alloc", "logs", alloc), f"its log contains {text!r}")


def test_each_is_a_valid_job(jobs: Jobs) -> None:
    variables = ("-var", "source=http://127.0.0.1/", "-var", f"sha256={'0' * 64}")
    for example in sorted(EXAMPLES.glob("*.hcl")):
        given = variables if example.name.startswith("artifact") else ()
        assert "Job validation successful" in ok("nomad", "job", "validate", *given, str(example))


def test_hello(jobs: Jobs) -> None:
    submit(jobs, "hello", "hello")
    completes("hello", "arguments: 'from hello'")


def test_greet(jobs: Jobs) -> None:
    submit(jobs, "greet", "greet")
    completes(jobs.dispatch("greet", "greeting=hi"), "--greeting=hi")


def test_artifact(jobs: Jobs, web: str) -> None:
    checksum = hashlib.sha256((GUESTS / "hello.spt").read_bytes()).hexdigest()
    submit(jobs, "artifact", "artifact", "-var", f"source={web}/hello.spt", "-var", f"sha256={checksum}")
    completes("artifact", "arguments: ''")


@pytest.fixture
def storage() -> Iterator[Path]:
    DISKS.mkdir()
    disk = DISKS / "storage.img"
    disk.write_bytes(b"on the disk".ljust(512))
    disk.chmod(0o666)
    yield disk
    disk.unlink()
    DISKS.rmdir()


def test_disk(jobs: Jobs, storage: Path) -> None:
    submit(jobs, "disk", "disk")
    completes("disk", "on the disk")


def test_files_are_configuration_and_a_secret(jobs: Jobs) -> None:
    ok("nomad", "var", "put", "-force", "nomad/jobs/files", "token=of this job")
    try:
        submit(jobs, "files", "files")
        digest = hashlib.sha256(b"of this job").hexdigest()
        completes("files", f"member secrets/token type 0 size 11 sha256 {digest}")
        completes("files", "member local/app.toml type 0 size 9")
    finally:
        ok("nomad", "var", "purge", "nomad/jobs/files")


def test_disks_that_stay_and_that_end_with_the_task(jobs: Jobs) -> None:
    ok("solo5ctl", "disk", "create", "ledger-blank", "64M")
    try:
        submit(jobs, "disks", "disks")
        alloc = running("disks")
        alloc.says("config: 'first ledger'", name="ledger")
        alloc.says("count 3", name="ledger")
        ok("nomad", "alloc", "restart", alloc)
        blank = "scratch: newest 0"
        eventually(lambda: alloc.logs(name="ledger").count(blank) == 2, "each start has blank scratch space")
        newest = [int(number) for number in re.findall(r"data: newest (\d+)", alloc.logs(name="ledger"))]
        assert newest[0] == 0 < 3 <= newest[1], "the data stay"
    finally:
        jobs.purge()
        for disk in ("ledger-blank", "ledger-data"):
            ok("solo5ctl", "disk", "rm", disk)


def test_everywhere(agent: Agent, jobs: Jobs) -> None:
    """It is constrained to nodes with usable KVM."""
    usable = agent.driver()["Attributes"]["driver.solo5.kvm"] == "true"
    submit(jobs, "everywhere", "everywhere")
    running("everywhere", 1 if usable else 0)
    assert [alloc["NodeID"] for alloc in allocations("everywhere")] == [agent.node] * usable


@pytest.mark.parametrize("example, name", [("web", "web"), ("two-networks", "gateway"), ("two-tasks", "pair")])
def test_server_answers_from_outside(jobs: Jobs, outside: Outside, example: str, name: str) -> None:
    submit(jobs, example, name)
    web = running(name).port("http")
    eventually(lambda: "--ipv4=" in outside.tcp(NODE_ADDRESS, web), "the guest answers")


def test_canary_and_old_version_answer_until_it_is_promoted(jobs: Jobs, outside: Outside) -> None:
    def answer(alloc: Allocation) -> str:
        return outside.tcp(NODE_ADDRESS, alloc.port("http"))

    submit(jobs, "canary", "canary")
    succeeds("canary", 0)
    submit(jobs, "canary", "canary", "-var", "version=2")
    eventually(lambda: versions("canary") == [0, 1], "the canary runs beside the old version")
    old, new = (alloc["ID"] for alloc in sorted(allocations("canary"), key=lambda alloc: alloc["JobVersion"]))
    eventually(lambda: "--version=2" in answer(new), "the canary answers at a port of its own")
    assert "--version=1" in answer(old)
    assert len(registered("canary")) == 2
    healthy = lambda: deployment("canary")["TaskGroups"]["web"]["HealthyAllocs"] == 1  # noqa: E731
    eventually(healthy, "the canary is healthy")
    ok("nomad", "deployment", "promote", "-detach", deployment("canary")["ID"])
    succeeds("canary", 1)
    eventually(lambda: versions("canary") == [1], "the old version has ended")
    assert "--version=2" in answer(new)


def test_mirage_has_its_address_name_servers_and_port(jobs: Jobs, outside: Outside) -> None:
    submit(jobs, "mirage", "mirage")
    alloc = running("mirage")
    web = alloc.port("http")
    assert inspect(alloc.name())["dns"] == ["9.9.9.9", "149.112.112.112"]
    address = f"--ipv4={alloc.nic()['ipv4']} --ipv4-gateway={alloc.nic()['gateway4']}"
    line = f"{address} --dns-servers=udp:9.9.9.9,udp:149.112.112.112 --public-port={web}"
    eventually(lambda: line in outside.tcp(NODE_ADDRESS, web), "the guest has its arguments")


@pytest.mark.vm  # the kernel of a container's host may have bridges without VLANs
@pytest.mark.long
def test_lan_is_a_machine_of_its_vlan(jobs: Jobs) -> None:
    ok("ip", "link", "add", "br0", "type", "bridge", "vlan_filtering", "1")
    try:
        ok("ip", "link", "set", "br0", "up")
        ok("bridge", "vlan", "add", "vid", "20", "dev", "br0", "self")
        ok("ip", "link", "add", "link", "br0", "name", "br0.20", "type", "vlan", "id", "20")
        ok("ip", "address", "add", "10.66.0.1/24", "dev", "br0.20")
        ok("ip", "link", "set", "br0.20", "up")
        submit(jobs, "lan", "lan")
        address = running("lan").nic()["ipv4"].partition("/")[0]
        eventually(partial(answers, address), "it answers in its VLAN")
        assert registered("lan") == [(address, 80)]
        jobs.purge()
    finally:
        ok("ip", "link", "delete", "br0")


def test_dual_stack_has_both_addresses(jobs: Jobs, outside: Outside) -> None:
    submit(jobs, "dual-stack", "dual-stack")
    alloc = running("dual-stack")
    for family in ("ipv4", "ipv6"):
        eventually(partial(answers, alloc.nic()[family].partition("/")[0]), f"it answers at its {family} address")
    eventually(lambda: "--ipv6=" in outside.tcp(NODE_ADDRESS, alloc.port("http")), "its port answers outside")


def test_worker_reaches_what_it_lists(jobs: Jobs, outside: Outside) -> None:
    submit(jobs, "worker", "worker")
    limits = running("worker").nic()
    assert (limits["egress"], limits["rate"]) == (["192.0.2.2:9/udp", "192.0.2.2:53"], ["sent=1M", "received=1M"])
    listener = f"import socket; s = socket.socket(2, 2); s.bind(({outside.there!r}, 9)); print(s.recv(100))"
    assert "datagram" in outside.ok("python3", "-I", "-c", listener)


def answers(address: str) -> bool:
    return sh("ping", "-c1", "-W1", address).returncode == 0
