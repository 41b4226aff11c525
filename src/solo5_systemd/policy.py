"""What an operator permits on a node, checked in one place against what is about to be made.

A request leaves much to defaults, to the plugin's configuration and to the image's manifest. So nothing of a request is
judged here, but the task as it would be started, all of that filled in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.image.manifest import Target
from solo5_systemd.names import DeviceName, NetworkName

_MIB = 1 << 20
_CEILINGS = "The operator sets it in plugin.solo5.config.ceilings."


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What may be made; the default permits everything.

    Attributes:
        networks: those that a NIC may join; empty: any.
        units: the types of unit, such as `service`; empty: any.
        tenders: empty: any.
        memory: bytes at which the kernel ends a task, at most; None: no ceiling, as for all that follow.
        nics: how many of a task, at most.
        disks: the same.
        ports: of the host that lead to a task, whatever their protocols.
        image: bytes of an image's file.
    """

    networks: tuple[NetworkName, ...] = ()
    units: tuple[str, ...] = ()
    tenders: tuple[Target, ...] = ()
    memory: int | None = None
    nics: int | None = None
    disks: int | None = None
    ports: int | None = None
    image: int | None = None


@dataclass(frozen=True, kw_only=True)
class Made:
    """What is about to be made.

    Attributes:
        unit: its type.
        tender: the one that the image is built for.
        memory: bytes, that of the guest and its tender.
        memory_max: bytes at which the kernel ends the task; None: nowhere.
        nics: each with the network that it joins.
        disks: how many.
        ports: of the host, how many.
        image: bytes of its file.
    """

    unit: str
    tender: Target
    memory: int
    memory_max: int | None
    nics: Mapping[DeviceName, NetworkName] = field(default_factory=dict)
    disks: int = 0
    ports: int = 0
    image: int = 0


def check(policy: Policy, made: Made) -> None:
    """Check all that is about to be made.

    Raises:
        InvalidRequestError: some of it is not permitted.
    """
    for error in _refusals(policy, made):
        raise error


def _refusals(policy: Policy, made: Made) -> Iterator[InvalidRequestError]:
    if policy.units and made.unit not in policy.units:
        yield InvalidRequestError(
            f"unit type {made.unit} is not allowed on this node: expected {' or '.join(policy.units)}.",
            f'The operator allows it by plugin.solo5.config.allowed_units, to which "{made.unit}" is added.',
        )
    if policy.tenders and made.tender not in policy.tenders:
        yield InvalidRequestError(
            f"tender {made.tender}, which the image is built for, is not allowed on this node: "
            f"expected {' or '.join(policy.tenders)}.",
            "The operator sets it in plugin.solo5.config.allowed_tenders.",
        )
    yield from _too_much(policy, made)
    for nic, network in made.nics.items():
        if policy.networks and network not in policy.networks:
            yield InvalidRequestError(
                f"network {network} of NIC {nic} is not allowed on this node: "
                f"expected one of {', '.join(policy.networks)}.",
                f"Set the network of NIC {nic}.",
            )


def _too_much(policy: Policy, made: Made) -> Iterator[InvalidRequestError]:
    limit = None if made.memory_max is None else made.memory_max // _MIB
    most = None if policy.memory is None else policy.memory // _MIB
    if most is not None and limit is None:
        yield InvalidRequestError(f"memory_max is unlimited: expected at most {most}M, this node's ceiling.", _CEILINGS)
    for what, value, ceiling, unit in (
        ("memory", made.memory // _MIB, most, "M"),
        ("memory_max", limit or 0, most, "M"),
        ("the number of NICs", len(made.nics), policy.nics, ""),
        ("the number of disks", made.disks, policy.disks, ""),
        ("the number of ports", made.ports, policy.ports, ""),
        ("the size of the image in bytes", made.image, policy.image, ""),
    ):
        if ceiling is not None and value > ceiling:
            yield InvalidRequestError(
                f"{what} is {value}{unit}: expected at most {ceiling}{unit}, this node's ceiling.", _CEILINGS
            )
