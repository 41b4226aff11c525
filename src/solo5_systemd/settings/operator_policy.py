"""The limits that an operator sets for tasks on a node, and their check.

A request is checked after defaults, the plugin's configuration and the image's manifest are filled in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, DiskName, NetworkName, Target
from solo5_systemd.settings.network import NO_NETWORK

_MIB = 1 << 20
_CEILINGS = "The operator sets it in plugin.solo5.config.ceilings."


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The limits for one task; the default permits everything.

    Attributes:
        networks: networks that a NIC may join; empty: any.
        units: unit types, such as `service`; empty: any.
        tenders: tenders; empty: any.
        memory: largest memory_max in bytes; None: no ceiling, as for all that follow.
        nics: largest number of NICs.
        disks: largest number of disks.
        ports: largest number of published host ports, counted once for all protocols.
        image: largest size of the image in bytes.
        named_disks: patterns of named disks (fnmatch(3)), one of which each must match; None: any.
        new_disk: largest size in bytes of a disk that a start creates.
        unenforced_io: I/O limits of disks are permitted on a host without the cgroup controller for them.
    """

    networks: tuple[NetworkName, ...] = ()
    units: tuple[str, ...] = ()
    tenders: tuple[Target, ...] = ()
    memory: int | None = None
    nics: int | None = None
    disks: int | None = None
    ports: int | None = None
    image: int | None = None
    named_disks: tuple[str, ...] | None = None
    new_disk: int | None = None
    unenforced_io: bool = True


@dataclass(frozen=True, kw_only=True)
class EffectiveRequest:
    """A request with all defaults filled in, and the facts of its image.

    Attributes:
        unit: unit type.
        tender: that the image is built for.
        memory: bytes of guest and tender.
        memory_max: bytes of MemoryMax=; None: no limit.
        nics: the network of each NIC.
        disks: number of disks.
        ports: number of published host ports.
        image: size of the image in bytes.
        named_disks: those of the task that are named disks.
        new_disk: size in bytes of the largest disk that may have to be created; 0: none.
    """

    unit: str
    tender: Target
    memory: int
    memory_max: int | None
    nics: Mapping[DeviceName, NetworkName] = field(default_factory=dict)
    disks: int = 0
    ports: int = 0
    image: int = 0
    named_disks: Mapping[DeviceName, DiskName] = field(default_factory=dict)
    new_disk: int = 0


def check(policy: Policy, request: EffectiveRequest) -> None:
    """Check a request against a policy.

    Raises:
        InvalidRequestError: the policy does not permit it.
    """
    for error in _refusals(policy, request):
        raise error


def _refusals(policy: Policy, request: EffectiveRequest) -> Iterator[InvalidRequestError]:
    if policy.units and request.unit not in policy.units:
        yield InvalidRequestError(
            f"unit type {request.unit} is not allowed on this node: expected {' or '.join(policy.units)}.",
            f'The operator can add "{request.unit}" to plugin.solo5.config.allowed_units.',
        )
    if policy.tenders and request.tender not in policy.tenders:
        yield InvalidRequestError(
            f"tender {request.tender}, which the image is built for, is not allowed on this node: "
            f"expected {' or '.join(policy.tenders)}.",
            "The operator sets it in plugin.solo5.config.allowed_tenders.",
        )
    yield from _too_much(policy, request)
    for disk, name in request.named_disks.items():
        if policy.named_disks is not None and not any(fnmatchcase(name, each) for each in policy.named_disks):
            yield InvalidRequestError(
                f"disk {disk}: named disk {name!r} is not allowed on this node: expected one that matches "
                f"{' or '.join(policy.named_disks) or 'a pattern, and there is none'}.",
                "The operator sets the patterns in plugin.solo5.config.allowed_disks.",
            )
    for nic, network in request.nics.items():
        if policy.networks and network not in (*policy.networks, NO_NETWORK):
            yield InvalidRequestError(
                f"network {network} of NIC {nic} is not allowed on this node: "
                f"expected one of {', '.join(policy.networks)}.",
                f"Set the network of NIC {nic}.",
            )


def _too_much(policy: Policy, request: EffectiveRequest) -> Iterator[InvalidRequestError]:
    limit = None if request.memory_max is None else request.memory_max // _MIB
    most = None if policy.memory is None else policy.memory // _MIB
    if most is not None and limit is None:
        yield InvalidRequestError(f"memory_max is unlimited: expected at most {most}M, this node's ceiling.", _CEILINGS)
    for what, value, ceiling, unit in (
        ("memory", request.memory // _MIB, most, "M"),
        ("memory_max", limit or 0, most, "M"),
        ("the number of NICs", len(request.nics), policy.nics, ""),
        ("the number of disks", request.disks, policy.disks, ""),
        ("the number of ports", request.ports, policy.ports, ""),
        ("the size of the image in bytes", request.image, policy.image, ""),
        ("the size of a new disk in bytes", request.new_disk, policy.new_disk, ""),
    ):
        if ceiling is not None and value > ceiling:
            yield InvalidRequestError(
                f"{what} is {value}{unit}: expected at most {ceiling}{unit}, this node's ceiling.", _CEILINGS
            )
