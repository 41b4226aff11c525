"""The network namespaces of jobs' tasks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, eventually, ok, sh, unit_property
from tests.machine.nomad.agent import USUAL, Agent
from tests.machine.nomad.jobs import NEVER_AGAIN, Jobs, hcl, unit
from tests.machine.nomad.test_joined import nic
from tests.machine.nomad.test_ready import PORTS

CONFIG = f"""
unikernel = "{GUESTS}/net.spt"
args = ["--ipv4={{net.service.ipv4_cidr}}", "--ipv4-gateway={{net.service.gateway4}}"]
ready {{
  tcp = "80"
}}
"""


@pytest.fixture
def apart(jobs: Jobs) -> Iterator[Jobs]:
    yield jobs
    jobs.purge()
    eventually(lambda: not [*Path("/run/netns").glob("solo5-*")], "no namespace is left")


def answers(alloc: str) -> bool:
    return sh("ping", "-c1", "-W1", nic(alloc)["ipv4"].partition("/")[0]).returncode == 0


def test_a_job_is_ready_and_survives_its_agent(apart: Jobs, agent: Agent) -> None:
    [alloc] = apart.run(hcl("apart", CONFIG, group=NEVER_AGAIN + PORTS))
    pid = unit_property(unit(alloc), "MainPID")
    assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/1/ns/net").readlink()
    agent.restart(USUAL)
    assert unit_property(unit(alloc), "MainPID") == pid
    assert answers(alloc)
    ok("nomad", "alloc", "restart", alloc)
    eventually(lambda: unit_property(unit(alloc), "MainPID") not in (pid, "0"), "it has restarted")
    eventually(lambda: answers(alloc), "it answers again")
