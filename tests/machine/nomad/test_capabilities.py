"""The driver's capabilities and attributes: which jobs a node rejects or gets, and the message for the operator."""

from typing import Any

from tests.machine.conftest import eventually, ok
from tests.machine.nomad.jobs import NEVER_AGAIN, SLEEPER, Jobs, allocations, block, blocked, hcl, network, running

VOLUME = 'volume "data" {{\n  type = "{}"\n  source = "data"\n{}}}\n'
ACCESS = '  attachment_mode = "file-system"\n  access_mode = "single-node-writer"\n'
MOUNT = 'volume_mount {\n  volume = "data"\n  destination = "/data"\n}\n'


def constraint(attribute: str, operator: str, value: str) -> str:
    return block("constraint", attribute=f"${{{attribute}}}", operator=operator, value=value)


UNPLACED: dict[str, tuple[dict[str, Any], str]] = {
    "driver": ({"group": NEVER_AGAIN + network(mode="driver")}, "missing network"),
    "cni": ({"group": NEVER_AGAIN + network(mode="cni/private")}, "missing network"),
    "host-volume": (
        {"group": NEVER_AGAIN + VOLUME.format("host", ""), "task": MOUNT},
        "missing compatible host volumes",
    ),
    "csi-volume": (
        {"group": NEVER_AGAIN + VOLUME.format("csi", ACCESS), "task": MOUNT},
        "missing CSI Volume data|missing CSI volume(s) data",  # the latter of Nomad 2
    ),
    "device": ({"resources": 'cpu = 20\ndevice "nvidia/gpu" {\n  count = 1\n}\n'}, "missing devices"),
    "newer-systemd": (
        {"job": constraint("attr.driver.solo5.systemd", ">=", "9999")},
        "${attr.driver.solo5.systemd} >= 9999",
    ),
    "other-network": (
        {"job": constraint("attr.driver.solo5.networks", "set_contains", "absent")},
        "${attr.driver.solo5.networks} set_contains absent",
    ),
    "no-spt": ({"job": constraint("attr.driver.solo5.spt", "=", "false")}, "${attr.driver.solo5.spt} = false"),
}


def test_what_no_node_offers_is_a_placement_failure(jobs: Jobs) -> None:
    submitted = {what: jobs.submit(hcl(f"unplaced-{what}", SLEEPER, **more)) for what, (more, _) in UNPLACED.items()}
    for what, job in submitted.items():
        eventually(lambda job=job: blocked(job), f"{job} waits for a node")  # type: ignore[misc]
        assert allocations(job) == []
        read = ok("nomad", "job", "status", job)
        texts = UNPLACED[what][1].split("|")
        assert any(f'Constraint "{text}": 1 nodes excluded by filter' in read for text in texts)


def test_job_is_placed_where_the_drivers_attributes_are_what_it_wants(jobs: Jobs) -> None:
    wanted = (
        constraint("attr.driver.solo5.systemd", ">=", "252"),
        constraint("attr.driver.solo5.spt", "=", "true"),
        constraint("attr.driver.solo5.cgroup", "=", "v2"),
        constraint("attr.driver.solo5.networks", "set_contains", "default,management"),
        constraint("attr.driver.solo5.version", "semver", ">= 0.1.0"),
    )
    running(jobs.submit(hcl("placed", SLEEPER, job="".join(wanted))))
