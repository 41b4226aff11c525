"""The ladder: `cluster` (machines and agents) → `guests` (nine of them, which outlive every test of a module)."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.cluster.agents import CLIENTS, LONG, SERVER, Agents
from tests.cluster.traffic import Target, get
from tests.machine.conftest import GUESTS, eventually, ok
from tests.machine.nomad.agent import api
from tests.machine.nomad.conftest import serving
from tests.machine.nomad.jobs import ADDRESSES, Allocation, allocations, deployment, hcl

COUNT = 9
IMAGE = GUESTS / "net.spt"
IMAGES = 8099
"""The port of the server's machine from which every node fetches the image."""

SPREAD = 'spread {\n  attribute = "${node.unique.name}"\n}\n'
MIGRATE = 'migrate {\n  max_parallel     = 3\n  min_healthy_time = "0s"\n  healthy_deadline = "1m"\n}\n'
_GROUP = """
network {
  port "web" {
    to = 80
  }
}
restart {
  attempts = 3
  delay    = "1s"
}
reschedule {
  delay          = "5s"
  delay_function = "constant"
  unlimited      = true
}
disconnect {
  lost_after = "%s"
  replace    = true
  reconcile  = "keep_original"
}
"""
# A service of the group is registered before its tasks are ready.
_TASK = """
shutdown_delay = "2s"
service {
  name     = "%s"
  provider = "nomad"
  port     = "web"
}
"""
_ARTIFACT = """
artifact {
  source      = "%s/%s"
  destination = "local/%s"
  mode        = "file"
  options {
    checksum = "sha256:%s"
  }
}
"""
CONFIG = f"""
unikernel = "local/{IMAGE.name}"
args      = [{ADDRESSES}, "--udp=80", "allocation=${{NOMAD_ALLOC_ID}}"]
ready {{
  tcp      = "web"
  interval = "200ms"
}}
"""


def job(name: str, count: int, artifact: str, lost_after: str) -> str:
    """Return a job of so many guests, spread over the nodes, each a service with the job's name."""
    group, task = _GROUP % lost_after, _TASK % name + artifact
    return hcl(name, CONFIG, job=SPREAD + MIGRATE, group=group, task=task, count=count)


@dataclass(frozen=True, order=True)
class Guest:
    """A running allocation of the job `web`, with its published address."""

    alloc: Allocation
    node: str
    target: Target

    def answers(self) -> bool:
        """Return whether this allocation answers at its address."""
        try:
            return f"allocation={self.alloc}" in get(self.target, 2)
        except OSError:
            return False


def guests_of(job: str) -> list[Guest]:
    """Return the allocations of a job that run according to Nomad, and are to run.

    One that is to stop counts as running until its client reports, which a dead client never does.
    """
    wanted = [alloc for alloc in allocations(job) if alloc["DesiredStatus"] == "run"]
    return [_guest(alloc["ID"]) for alloc in wanted if alloc["ClientStatus"] == "running"]


def _guest(alloc: Allocation) -> Guest:
    about = alloc.about()
    [port] = about["AllocatedResources"]["Shared"]["Ports"]
    return Guest(alloc, about["NodeName"], (port["HostIP"], port["Value"]))


def serve(job: str, count: int) -> list[Guest]:
    """Wait until so many guests of a job run and answer with their own names."""
    found: list[Guest] = []

    def claim() -> bool:
        found[:] = guests_of(job)
        return len(found) == count and all(guest.answers() for guest in found)

    try:
        eventually(claim, f"{count} guests of {job} answer", LONG)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{found}\n{ok('nomad', 'job', 'status', job)}") from error
    return found


@pytest.fixture(scope="session")
def cluster() -> Iterator[Agents]:
    """The agents; at the end no client has anything left of a task."""
    agents = Agents({peer: peer.left() for peer in CLIENTS})
    agents.install()
    yield agents
    for peer in CLIENTS:
        agents.left_as_found(peer)


@pytest.fixture(scope="session")
def images() -> Iterator[str]:
    """The `artifact` block of the image, which this machine serves by HTTP."""
    digest = hashlib.sha256(IMAGE.read_bytes()).hexdigest()
    with serving(SERVER, IMAGES) as url:
        yield _ARTIFACT % (url, IMAGE.name, IMAGE.name, digest)


def pinned(node: str) -> str:
    """Return the constraint of a job that is to run on a node."""
    return f'constraint {{\n  attribute = "${{node.unique.name}}"\n  value     = "{node}"\n}}\n'


def submit(text: str) -> None:
    api("/v1/jobs", "PUT", {"Job": api("/v1/jobs/parse", "POST", {"JobHCL": text, "Canonicalize": True})})


def purge(job: str) -> None:
    """Stop a job, wait until its tasks are over, and purge it.

    Nomad unmounts the CSI volumes of a job that is purged while its tasks run: their disks cannot be reclaimed then.
    """
    api(f"/v1/job/{job}", "DELETE")
    over = {"complete", "failed", "lost"}
    eventually(lambda: over.issuperset(each["ClientStatus"] for each in allocations(job)), f"{job} is over", LONG)
    api(f"/v1/job/{job}?purge=true", "DELETE")
    ok("nomad", "system", "gc")


@pytest.fixture(scope="session")
def guests(cluster: Agents, images: str) -> Iterator[None]:
    submit(job("web", COUNT, images, lost_after="10m"))
    serve("web", COUNT)
    # A guest that is lost while its deployment goes on is not replaced before that is over.
    eventually(lambda: deployment("web").get("Status") == "successful", "the deployment is over", LONG)
    yield
    purge("web")
