"""A CSI volume of a storage that every node reaches: its guest may run on any of them, on one at a time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.agents import CLIENTS, LONG, Agents
from tests.cluster.conftest import pinned, purge, submit
from tests.machine.conftest import eventually, ok
from tests.machine.nomad.agent import api
from tests.machine.nomad.csi import SPECIFICATION, is_healthy, plugin_job, volume
from tests.machine.nomad.jobs import Allocation, allocations, blocked, hcl, newest
from tests.machine.nomad.test_volumes import MOUNT, disk

HERE, ELSEWHERE = CLIENTS[0], CLIENTS[1]
STORAGE = Path("/srv/shared/csi")


def job(name: str, node: str, *words: str) -> str:
    """Return a job that is to run on a node, with the volume as its guest's disk."""
    config = disk(*words, block='create = true\nsize = "64K"', image="disk.spt")
    return hcl(name, config, job=pinned(node), group=volume("file-system"), task=MOUNT)


def runs(name: str) -> Allocation:
    """Wait until a job runs, and return its allocation."""
    eventually(lambda: [each["ClientStatus"] for each in allocations(name)] == ["running"], f"{name} runs", LONG)
    return newest(name)


@pytest.fixture
def data(cluster: Agents) -> Iterator[None]:
    """The plugin on each client, and its volume `data`."""
    path = Path("/tmp/csi.hcl")
    path.write_text(SPECIFICATION.format(name="data", mode="file-system"))
    submit(plugin_job(STORAGE))
    try:
        eventually(lambda: is_healthy(len(CLIENTS)), "the plugin is healthy", LONG)
        ok("nomad", "volume", "create", str(path))
        yield
        eventually(lambda: not api("/v1/volume/csi/data")["WriteAllocs"], "the volume is free", LONG)
        ok("nomad", "volume", "delete", "data")
    finally:
        purge("csi")


def test_a_volume_that_is_attached_elsewhere_is_waited_for_and_comes_with_its_data(data: None) -> None:
    submit(job("first", HERE.name, "write=kept", "read", "stay"))
    runs("first").says("sector 0: 'kept'")
    submit(job("second", ELSEWHERE.name, "read", "stay"))
    eventually(lambda: blocked("second"), "it waits", LONG)
    assert not allocations("second")
    assert "has exhausted its available writer claims" in ok("nomad", "job", "status", "second")
    ok("nomad", "job", "stop", "-detach", "first")
    runs("second").says("sector 0: 'kept'")
    for name in ("first", "second"):
        purge(name)
