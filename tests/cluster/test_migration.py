"""A disk in the directory of an allocation, which Nomad copies to the node of the next one."""

from collections.abc import Iterator

import pytest
from tests.cluster.agents import CLIENTS, LONG, SERVER, Agents
from tests.cluster.conftest import IMAGES, pinned, purge, submit
from tests.machine.conftest import GUESTS, eventually
from tests.machine.nomad.jobs import NEVER_AGAIN, Allocation, allocations, block, guest, hcl

BLANK = GUESTS / "blank.img"
SIZE = 4096


@pytest.fixture
def blank(images: str) -> Iterator[str]:
    """The `artifact` block of an empty disk, beside the images that are served."""
    BLANK.write_bytes(bytes(SIZE))
    source = f"http://{SERVER}:{IMAGES}/{BLANK.name}"
    yield block("artifact", source=source, destination="local/disk.img", mode="file")
    BLANK.unlink()


def on(node: str, task: str, *words: str) -> str:
    """Return the job as it is to run on a node."""
    config = guest("disk.spt", *words, more=block("block", "storage", source="local/disk.img"))
    kept = "sticky = true\nmigrate = true"
    return hcl("moving", config, job=pinned(node), group=NEVER_AGAIN, task=task, ephemeral_disk=kept)


def runs_on(node: str) -> Allocation:
    """Wait until the job runs on a node, and return the allocation."""
    found: list[Allocation] = []

    def claim() -> bool:
        each = [alloc["ID"] for alloc in allocations("moving") if alloc["NodeName"] == node]
        found[:] = [alloc["ID"] for alloc in allocations("moving") if alloc["ClientStatus"] == "running"]
        return bool(found) and found == each[:1]

    eventually(claim, f"it runs on {node}", LONG)
    return found[0]


def test_what_a_guest_has_written_is_on_the_next_node_of_its_job(cluster: Agents, blank: str) -> None:
    first, second = CLIENTS[:2]
    number = second.ok("id", "--user", "solo5").strip()
    second.ok("usermod", "--uid", "777", "solo5")
    try:
        submit(on(first.name, blank, "write=kept", "stay"))
        runs_on(first.name).says("storage")
        submit(on(second.name, "", "read", "stay"))
        runs_on(second.name).says("sector 0: 'kept'")
    finally:
        purge("moving")
        second.ok("usermod", "--uid", number, "solo5")
