"""The check of a task against the limits that an operator sets for tasks on a node."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.image.manifest import StoredImage
from solo5_systemd.network.model import NicRequest
from solo5_systemd.settings.network import NO_NETWORK
from solo5_systemd.task.policy import Ceilings, Policy
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.workload import MIB, Workload

_CEILINGS = "The operator sets it in plugin.solo5.config.ceilings."


def check_policy(
    workload: Workload, policy: Policy, image: StoredImage, nics: Sequence[NicRequest], ports: int
) -> None:
    """Check a workload against its policy.

    Args:
        workload: with all defaults filled in: a ceiling limits the task, however little of it the request contains.

    Raises:
        InvalidRequestError: the policy does not permit it.
    """
    for error in (*_too_much(workload, policy.ceilings, image, nics, ports), *_refusals(workload, policy, image, nics)):
        raise error


def _refusals(
    workload: Workload, policy: Policy, image: StoredImage, nics: Sequence[NicRequest]
) -> Iterator[InvalidRequestError]:
    tender = image.facts.manifest.target
    if workload.kind not in policy.allowed_units:
        yield InvalidRequestError(
            f"unit type {workload.kind} is not allowed on this node: expected {' or '.join(policy.allowed_units)}.",
            f'The operator can add "{workload.kind}" to plugin.solo5.config.allowed_units.',
        )
    if policy.allowed_tenders and tender not in policy.allowed_tenders:
        yield InvalidRequestError(
            f"tender {tender}, which the image is built for, is not allowed on this node: "
            f"expected {' or '.join(policy.allowed_tenders)}.",
            "The operator sets it in plugin.solo5.config.allowed_tenders.",
        )
    for disk in workload.disks:
        patterns = policy.allowed_disks
        if disk.name is not None and not any(fnmatchcase(disk.name, each) for each in patterns):
            yield InvalidRequestError(
                f"disk {disk.disk}: named disk {disk.name!r} is not allowed on this node: expected one that matches "
                f"{' or '.join(patterns) or 'a pattern, and there is none'}.",
                "The operator sets the patterns in plugin.solo5.config.allowed_disks.",
            )
    for nic in nics:
        if policy.networks and nic.network not in (*policy.networks, NO_NETWORK):
            yield InvalidRequestError(
                f"network {nic.network} of NIC {nic.nic} is not allowed on this node: "
                f"expected one of {', '.join(policy.networks)}.",
                f"Set the network of NIC {nic.nic}.",
            )


def _too_much(
    workload: Workload, ceilings: Ceilings, image: StoredImage, nics: Sequence[NicRequest], ports: int
) -> Iterator[InvalidRequestError]:
    memory_max = workload.memory if workload.memory_max is None else workload.memory_max
    most = ceilings.memory_mb
    if most is not None and memory_max == INFINITY:
        yield InvalidRequestError(f"memory_max is unlimited: expected at most {most}M, this node's ceiling.", _CEILINGS)
    new_disk = max((disk.create.size for disk in workload.disks if disk.create is not None), default=0)
    for what, value, ceiling, unit in (
        ("memory", workload.memory // MIB, most, "M"),
        ("memory_max", memory_max // MIB, most, "M"),
        ("the number of NICs", len(nics), ceilings.nics, ""),
        ("the number of disks", len(workload.disks), ceilings.blocks, ""),
        ("the number of ports", ports, ceilings.ports, ""),
        ("the size of the image in bytes", image.size, ceilings.image_mb * MIB, ""),
        ("the size of a new disk in bytes", new_disk, ceilings.disk_mb * MIB, ""),
    ):
        if ceiling is not None and value > ceiling:
            yield InvalidRequestError(
                f"{what} is {value}{unit}: expected at most {ceiling}{unit}, this node's ceiling.", _CEILINGS
            )
