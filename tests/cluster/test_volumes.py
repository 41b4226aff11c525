"""A job whose volume is on another node: where it runs, and what the operator sees if it cannot."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.agents import CLIENTS, LONG, Agents
from tests.cluster.conftest import purge, submit
from tests.machine.conftest import GUESTS, eventually, ok
from tests.machine.nomad.agent import api
from tests.machine.nomad.jobs import allocations, ended, hcl, says

HERE, ELSEWHERE = CLIENTS[0].name, CLIENTS[1].name
CONFIG = f'unikernel = "{GUESTS}/disk.spt"\nargs = ["write=kept", "read"]\nblock "storage" {{\n  volume = "data"\n}}\n'
MOUNT = 'volume_mount {\n  volume = "data"\n  destination = "data"\n}\n'
VOLUME = 'volume "data" {\n  type = "host"\n  source = "data"\n}\n'
SPECIFICATION = """
name         = "data"
type         = "host"
plugin_id    = "solo5-disk"
node_id      = "{node}"
capacity_max = "1MiB"
capability {{
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}}
"""


def job(name: str, node: str = "") -> str:
    """Return a job of one guest with the volume, on one node only if that is given."""
    pinned = f'constraint {{\n  attribute = "${{node.unique.name}}"\n  value     = "{node}"\n}}\n' if node else ""
    return hcl(name, CONFIG, kind="batch", job=pinned, group=VOLUME, task=MOUNT)


@pytest.fixture
def volume(cluster: Agents) -> Iterator[None]:
    """The dynamic host volume `data` on the first client."""
    path = Path("/tmp/data.volume.hcl")
    path.write_text(SPECIFICATION.format(node=cluster.nodes[HERE]))
    ok("nomad", "volume", "create", str(path))
    yield
    [identifier] = [each["ID"] for each in api("/v1/volumes?type=host")]
    ok("nomad", "volume", "delete", "-type", "host", identifier)


def test_a_job_runs_where_its_volume_is_and_waits_elsewhere(volume: None) -> None:
    submit(job("free"))
    alloc = ended("free")
    assert [each["NodeName"] for each in allocations("free")] == [HERE]
    says(alloc, "sector 0: 'kept'")
    submit(job("pinned", ELSEWHERE))
    eventually(lambda: "blocked" in {e["Status"] for e in api("/v1/job/pinned/evaluations")}, "it waits", LONG)
    assert 'Constraint "missing compatible host volumes": 1 nodes excluded' in ok("nomad", "job", "status", "pinned")
    assert not allocations("pinned")
    for name in ("free", "pinned"):
        purge(name)
