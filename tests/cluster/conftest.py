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
from tests.machine.nomad.jobs import ADDRESSES, Allocation, allocations, block, deployment, hcl, network, port_hcl

COUNT = 9
IMAGE = GUESTS / "net.spt"
IMAGES = 8099
"""The port of the server's machine from which every node fetches the image."""

SPREAD = block("spread", attribute="${node.unique.name}")
MIGRATE = block("migrate", max_parallel=3, min_healthy_time="0s", healthy_deadline="1m")
GROUP = (
    network(port_hcl("web", to=80))
    + block("restart", attempts=3, delay="1s")
    + block("reschedule", delay="5s", delay_function="constant", unlimited=True)
)
CONFIG = f"""
unikernel = "local/{IMAGE.name}"
args      = [{ADDRESSES}, "--udp=80", "allocation=${{NOMAD_ALLOC_ID}}"]
{block("ready", tcp="web", interval="200ms")}"""


def job(name: str, count: int, artifact: str, lost_after: str) -> str:
    """Return a job of so many guests, spread over the nodes, each a service with the job's name."""
    group = GROUP + block("disconnect", lost_after=lost_after, replace=True, reconcile="keep_original")
    # A service of the group is registered before its tasks are ready.
    task = 'shutdown_delay = "2s"\n' + block("service", name=name, provider="nomad", port="web") + artifact
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
        options = block("options", checksum=f"sha256:{digest}")
        place = f"local/{IMAGE.name}"
        yield block("artifact", source=f"{url}/{IMAGE.name}", destination=place, mode="file", more=options)


def pinned(node: str) -> str:
    """Return the constraint of a job that is to run on a node."""
    return block("constraint", attribute="${node.unique.name}", value=node)


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
