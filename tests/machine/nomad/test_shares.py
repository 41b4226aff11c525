"""What a job can take of a node, with all of its tasks together: refused before anything is made."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, eventually, ok, registered, unit_property
from tests.machine.nomad.jobs import (
    NEVER_AGAIN,
    SERVER,
    SLEEPER,
    Jobs,
    allocations,
    block,
    ended,
    guest,
    hcl,
    network,
    port_hcl,
)

MIB = 1 << 20
STORE = Path("/var/lib/solo5/images")
COPIES = Path("/var/lib/solo5/copies")
EPHEMERAL = 'block "{}" {{\n  source = "local/large.img"\n  ephemeral = true\n}}\n'


@pytest.fixture
def large(web: str) -> Iterator[str]:
    """The `artifact` block of `large.img`, a file of 30 MiB without holes that is served by HTTP."""
    path = GUESTS / "large.img"
    path.write_bytes(os.urandom(MIB) * 30)
    yield block("artifact", source=f"{web}/large.img", destination="local/large.img", mode="file")
    path.unlink()


def claims() -> list[str]:
    return [claim for claim in registered().values() if " " in claim]


def states(job: str) -> list[str]:
    return sorted(str(each["ClientStatus"]) for each in allocations(job))


def settled(job: str, count: int) -> None:
    """Wait until each of so many allocations runs or has failed."""

    def claim() -> bool:
        found = states(job)
        return len(found) >= count and set(found) <= {"running", "failed"}

    eventually(claim, f"each of {count} of {job} runs or is refused", 120)


def why(job: str) -> set[str]:
    """Return the refusals of a job's failed allocations."""
    return {each["ID"].refusal() for each in allocations(job) if each["ClientStatus"] == "failed"}


def test_many_copies_of_one_artifact_take_nothing_of_var(jobs: Jobs, large: str) -> None:
    blocks = "".join(EPHEMERAL.format(f"storage{n}") for n in range(63))
    job = hcl("copies", f'unikernel = "{GUESTS}/disks63.hvt"\n{blocks}', kind="batch", task=large, memory=64)
    jobs.submit(job)
    words = ended("copies").refusal()
    most = os.statvfs("/var/lib/solo5").f_blocks * os.statvfs("/var/lib/solo5").f_frsize // 10
    kind, limit = ("of private copies", most) if most < 63 * 30 * MIB else ("that are copied for each run", 1024 * MIB)
    assert f"would have {63 * 30 * MIB} bytes {kind}: expected at most {limit}, since the limit of a task" in words
    assert "Preflight passed" not in words
    assert not COPIES.exists() or not list(COPIES.iterdir())
    assert not claims()


def test_twenty_starts_at_once_get_what_their_job_may_have(jobs: Jobs, limits: Path) -> None:
    limits.write_text("[limits]\njob = { tasks = 5 }\n")
    jobs.submit(hcl("many", SLEEPER, memory=16, resources="cpu = 1", count=20))
    settled("many", 20)
    assert states("many").count("running") == 5
    for words in why("many"):
        assert "would have 1 tasks: expected at most 0, since the limit of job 'many' is 5, of which 5 are" in words
    assert len(claims()) == 5
    jobs.run(hcl("other", SLEEPER, memory=16))
    ok("nomad", "job", "stop", "-detach", "many")
    eventually(lambda: len(claims()) == 1, "its tasks have gone, and take nothing")


def test_ports_and_addresses_of_a_job_and_of_a_namespace(jobs: Jobs, limits: Path) -> None:
    limits.write_text("[limits]\njob = { ports = 4 }\nnamespace = { addresses = 3 }\n")
    ports = network(port_hcl("one", to=80), port_hcl("two", to=81))
    jobs.submit(hcl("ports", SERVER, count=3, group=NEVER_AGAIN + ports, resources="cpu = 1"))
    settled("ports", 3)
    assert states("ports") == ["failed", "running", "running"]
    [words] = why("ports")
    assert "would have 2 published ports: expected at most 0, since the limit of job 'ports' is 4" in words
    jobs.run(hcl("third", SERVER, resources="cpu = 1"))
    jobs.submit(hcl("fourth", SERVER, kind="batch", resources="cpu = 1"))
    words = ended("fourth").refusal()
    assert "1 addresses of network default: expected at most 0, since the limit of namespace 'default' is 3" in words
    root = ok("solo5ctl", "run", "--detach", "--name", "root", f"{GUESTS}/net.hvt")
    assert root == "root\n", "what root starts has no part of a namespace"
    ok("solo5ctl", "rm", "--force", "root")


def test_archives_are_of_the_memory_that_the_scheduler_has_given(jobs: Jobs) -> None:
    template = block("template", destination="local/config", data="x" * 60000)
    config = guest("disk.hvt", "stay", more=block("block", "storage", files=["local/config"]))
    [alloc] = jobs.run(hcl("archive", config, task=template, memory=32))
    size = -(-60000 // 512) * 512 + 3 * 512
    assert int(unit_property(alloc.unit(), "MemoryMax")) == 32 * MIB - size


def test_images_beyond_the_share_of_a_job_are_not_stored(jobs: Jobs, limits: Path) -> None:
    before = {each.name for each in STORE.iterdir()} if STORE.exists() else set()
    limits.write_text("[limits]\njob = { images_mb = 0 }\n")
    jobs.submit(hcl("flood", f'unikernel = "{GUESTS}/sequence.spt"', kind="batch"))
    words = ended("flood").refusal()
    assert "bytes of images: expected at most 0, since the limit of job 'flood' is 0" in words
    assert {each.name for each in STORE.iterdir()} == before


def test_the_reserve_of_the_file_system_is_left(jobs: Jobs, limits: Path, large: str) -> None:
    free = os.statvfs("/var/lib/solo5").f_bavail * os.statvfs("/var/lib/solo5").f_frsize
    limits.write_text(f"[limits]\nreserve_mb = {(free >> 20) + 1000}\n")
    config = f'unikernel = "{GUESTS}/disk.hvt"\n{EPHEMERAL.format("storage")}'
    jobs.submit(hcl("copy", config, kind="batch", task=large))
    words = ended("copy").refusal()
    assert f"can take {30 * MIB} bytes of the file system of /var/lib/solo5/copies: expected at most 0" in words
    assert "limits.reserve_mb in solo5.toml(5)" in words
