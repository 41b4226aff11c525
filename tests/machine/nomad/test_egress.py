"""Egress lists and rate limits of jobs."""

from tests.machine.conftest import GUESTS, eventually, inspect, ok
from tests.machine.nomad.jobs import Jobs, hcl, name_of

CONFIG = f"""
unikernel = "{GUESTS}/net.hvt"
args = ["--ipv4={{net.service.ipv4_cidr}}", "--ipv4-gateway={{net.service.gateway4}}", "--send=192.0.2.77:9"]
egress = ["10.0.0.0/8:5432/tcp"]
rate = ["sent=1M"]
"""


def test_a_jobs_guest_has_the_limits_of_its_task_or_of_its_nic(jobs: Jobs) -> None:
    for name, more, egress in (
        ("limited", "", ["10.0.0.0/8:5432/tcp"]),
        ("closed", 'nic "service" {\n  egress = []\n}\n', []),
    ):
        [alloc] = jobs.run(hcl(name, CONFIG + more))
        task = name_of(alloc)
        [nic] = inspect(task)["nics"]
        assert (nic["egress"], nic["rate"]) == (egress, ["sent=1M"])
        address = nic["ipv4"].partition("/")[0]
        rules = ok("nft", "list", "chain", "ip", "solo5", f"egress-{address}")
        assert ("10.0.0.0/8" in rules) == bool(egress)
        eventually(
            lambda address=address: _is_counted(address),  # type: ignore[misc]
            "what it sends elsewhere is dropped and counted",
        )


def _is_counted(address: str) -> bool:
    listed = ok("nft", "list", "set", "ip", "solo5", "unlisted")
    return address in listed and f"{address} counter packets 0 " not in listed
