"""The limits of what tasks take of a node together: a task, a job and a namespace of Nomad, all tasks.

[limits]
namespace = { percent = 50, ports = 1000, copies_mb = 65536 }  # a number takes the place of the part of the node

A task's claim is what it takes. It is recorded before anything is made, so that starts at the same time see each other.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Annotated

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error, TakenError
from solo5_systemd.base.names import hash_of
from solo5_systemd.settings.records import Type, integer, setting

RESERVE_MB = 2048
"""The default of `reserve_mb` is a tenth of the file system, and at most this."""

SOCKETS_PER_PORT = 2
"""Of a published port that a share is reckoned with: most have a socket for TCP and one for UDP."""

_NAME_MAX = 64


class Resource(StrEnum):
    """What is limited, as it is named in errors. `COPIED` are the bytes that a start has to copy for `COPIES`."""

    TASKS = "tasks"
    PORTS = "published ports"
    ADDRESSES = "addresses"
    COPIES = "bytes of private copies"
    COPIED = "bytes that are copied for each run"
    ARCHIVES = "bytes of archives in memory"
    IMAGES = "bytes of images"
    DISKS = "bytes of disks"


KEYS = {
    each.name.lower() + ("_mb" if each.startswith("bytes") else ""): each
    for each in Resource
    if each is not Resource.COPIED
}
"""The keys of a scope's table: `tasks`, `copies_mb`."""

LEAST = {Resource.ADDRESSES: 4, Resource.IMAGES: 64 << 20}
"""What a part is at least: of a small network or image store, a tenth would be of no use."""


class Scope(StrEnum):
    """The tasks that have a limit together."""

    TASK = "task"
    JOB = "job"
    NAMESPACE = "namespace"
    NODE = "node"


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """The job of Nomad that a task or disk is of; empty: root's own, which only the limits of the node hold.

    A volume has a namespace alone.
    """

    namespace: str = ""
    job: str = ""


OPERATOR = Tenant()


def tenant(namespace: str, job: str) -> Tenant:
    """Return the tenant of a job; a job that is dispatched or periodic is that of its parent.

    Names of any length stay different, as short texts.
    """
    for child in ("/dispatch-", "/periodic-"):
        job = job.partition(child)[0] or job  # a job's own name may begin so
    return Tenant(namespace=_short(namespace or "default"), job=_short(job))


def _short(name: str) -> str:
    if len(name.encode("utf-8", "surrogateescape")) <= _NAME_MAX:
        return name
    return f"sha256:{hash_of(name, _NAME_MAX - 7)}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a task or disk takes of the node.

    Attributes:
        amounts: by resource, or `RESOURCE/NAME` where the node has several of them: the address ranges of networks, and
            images, which many tasks share.
    """

    tenant: Tenant = OPERATOR
    amounts: Mapping[str, int] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the claim as one line of JSON."""
        amounts = {key: amount for key, amount in self.amounts.items() if amount}
        return json.dumps([self.tenant.namespace, self.tenant.job, amounts], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Claim":
        """Parse what `to_text` has returned; raises ValueError for anything else."""
        namespace, job, amounts = json.loads(text)
        return cls(
            tenant=Tenant(namespace=str(namespace), job=str(job)),
            amounts={str(key): int(amount) for key, amount in dict(amounts).items()},
        )


@dataclass(frozen=True, kw_only=True)
class Share:
    """The limits of one scope: amounts, and else a part of what the node has; `percent` None: all of it."""

    percent: int | None = None
    amounts: Mapping[Resource, int] = field(default_factory=dict)

    def most(self, resource: str, capacity: Callable[[], Mapping[str, int]]) -> int | None:
        """Return the limit of a resource, with `capacity` as for `Node`; None: no limit."""
        name = Resource(resource.partition("/")[0])
        if name in self.amounts:
            return self.amounts[name]
        # Of a LAN without a pool, the number of addresses is not known.
        if self.percent is None or (whole := capacity().get(resource)) is None:
            return None
        return max(LEAST.get(name, 1), whole * self.percent // 100)


def _share(fields: Fields, key: str) -> Share:
    default: Share = getattr(Limits, key)
    table = fields.table(key)
    table.allow("percent", *KEYS)
    return Share(
        percent=table.integer("percent", low=1, high=100) if "percent" in table else default.percent,
        amounts={
            resource: table.integer(each, low=0, high=1 << 30) << (20 if each.endswith("_mb") else 0)
            for each, resource in KEYS.items()
            if each in table
        },
    )


SHARE = Type(_share, lambda share: {"percent": share.percent} if share.percent else {})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """All limits: the keys of `[limits]`."""

    # fmt: off
    reserve_mb: Annotated[int | None, integer(0, 1 << 30)] = setting(
        "The MiB that stay free in a file system.",
        default=None, shown=f"a tenth of it, at most {RESERVE_MB}", example=RESERVE_MB,
    )
    task: Annotated[Share, SHARE] = setting("One task.", default=Share(percent=10))
    job: Annotated[Share, SHARE] = setting("All tasks of one job.", default=Share(percent=10))
    namespace: Annotated[Share, SHARE] = setting(
        "All tasks, created disks and volumes of one namespace of Nomad.", default=Share(percent=50)
    )
    node: Annotated[Share, SHARE] = setting("All tasks, also those that root starts.", default=Share())
    # fmt: on

    def copying(self, most: int) -> "Limits":
        """Return the limits with `most` bytes as those that a task may have copied."""
        return replace(self, task=replace(self.task, amounts={**self.task.amounts, Resource.COPIED: most}))

    def reserve(self, size: int) -> int:
        """Return the bytes that stay free in a file system of `size` bytes."""
        if self.reserve_mb is not None:
            return self.reserve_mb << 20
        return min(size // 10, RESERVE_MB << 20)


@dataclass(frozen=True, kw_only=True)
class Space:
    """A file system, in bytes; `free`: for others than root."""

    size: int
    free: int


def check_space(limits: Limits, space: Space, more: int, what: str, where: str, promised: int = 0) -> None:
    """Check that the reserve of a file system is left when something is made.

    Args:
        what: it, as the beginning of a sentence.
        promised: bytes that others can still take, by what was made for them.

    Raises:
        HostError: too little would be left.
    """
    reserve = limits.reserve(space.size)
    if more > 0 and space.free - promised - more < reserve:  # also without the reserve, what takes nothing can be made
        raise HostError(
            f"{what} can take {more} bytes of the file system of {where}: expected at most "
            f"{max(0, space.free - promised - reserve)}, since {space.free} are free, {promised} are promised to "
            f"others, and {reserve} stay free.",
            "Free some space in it; the operator sets limits.reserve_mb in solo5.toml(5).",
        )


class Totals:
    """The sums of claims by resource: of each job, of each namespace, and of all. An image counts once in each."""

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self._sums: dict[Tenant | None, dict[str, int]] = {}
        for claim in claims:
            self.add(claim)

    def add(self, claim: Claim, sign: int = 1) -> None:
        """Add a claim, or with `sign` -1 remove it again."""
        for whose in {_whose(claim.tenant, scope) for scope in (Scope.JOB, Scope.NAMESPACE, Scope.NODE)}:
            sums = self._sums.setdefault(whose, {})
            for resource, amount in claim.amounts.items():
                if resource.startswith(_IMAGE):  # the store has an image once for all tasks with it
                    sums[resource] = had = sums.get(resource, 0) + sign  # how often
                    if had == (1 if sign > 0 else 0):  # the first claim came, or the last one went
                        sums[Resource.IMAGES] = sums.get(Resource.IMAGES, 0) + sign * amount
                else:
                    sums[resource] = sums.get(resource, 0) + sign * amount

    def of(self, tenant: Tenant, scope: Scope) -> Mapping[str, int]:
        """Return the sums of a scope that a tenant is in; of each image, how many claims have it."""
        return self._sums.get(_whose(tenant, scope), {})


_IMAGE = f"{Resource.IMAGES}/"


def _whose(tenant: Tenant, scope: Scope) -> Tenant | None:
    """Return the key of a scope that a tenant is in."""
    if scope is Scope.NODE:
        return None
    return tenant if scope is Scope.JOB and tenant.job else Tenant(namespace=tenant.namespace)


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a node has.

    Attributes:
        capacity: returns it by resource, or `RESOURCE/NAME`; called where a limit is a part of the node.
        copies: returns the file system of private copies, its free space without what disks have not written yet.
    """

    limits: Limits = field(default_factory=Limits)
    capacity: Callable[[], Mapping[str, int]] = dict
    copies: Callable[[], Space] | None = None

    def _limits_of(self, claim: Claim) -> Mapping[Scope, Share]:
        """Return the limits that hold for a claim, by scope."""
        shares: dict[Scope, Share] = {scope: getattr(self.limits, scope) for scope in Scope}
        if claim.tenant == OPERATOR:  # a part of the node is for tenants
            shares = {scope: replace(shares[scope], percent=None) for scope in (Scope.TASK, Scope.NODE)}
        elif not claim.tenant.job:  # a volume: of a namespace, and no job's
            shares = {scope: share for scope, share in shares.items() if scope in (Scope.NAMESPACE, Scope.NODE)}
        return {scope: share for scope, share in shares.items() if share != Share()}

    def check(self, claim: Claim, others: Callable[[], Totals], what: str) -> None:
        """Check a claim beside those that are made already.

        Args:
            others: returns the sums of those; called where a limit is not of the task alone.
            what: the task or disk, as the beginning of a sentence.

        Raises:
            InvalidRequestError: it exceeds a limit even alone.
            TakenError: it exceeds one with others, which may end.
            HostError: the reserve of a file system would not be left.
        """
        others = cache(others)
        for scope, share in self._limits_of(claim).items():
            sums = {} if scope is Scope.TASK else others().of(claim.tenant, scope)
            for resource, amount in claim.amounts.items():
                name = Resource.IMAGES if resource.startswith(_IMAGE) else resource
                most, has = share.most(name, self.capacity), sums.get(name, 0)
                is_there = name != resource and sums.get(resource, 0) > 0
                # Also above a limit that was lowered, what adds nothing is fine.
                if most is not None and amount and not is_there and has + amount > most:
                    raise _refusal(claim, scope, name, what, (amount, has, most))
        copies = claim.amounts.get(Resource.COPIES, 0)
        if self.copies is not None and copies:
            promised = others().of(OPERATOR, Scope.NODE).get(Resource.COPIES, 0)
            check_space(self.limits, self.copies(), copies, what, "/var/lib/solo5/copies", promised)


def _refusal(claim: Claim, scope: Scope, resource: str, what: str, numbers: tuple[int, int, int]) -> Solo5Error:
    alone, has, most = numbers
    name, _, of = resource.partition("/")
    where = f" {'of network' if name == Resource.ADDRESSES else 'in'} {of}" if of else ""
    whose = {
        Scope.TASK: "a task",
        Scope.JOB: f"job {claim.tenant.job!r}",
        Scope.NAMESPACE: f"namespace {claim.tenant.namespace!r}",
        Scope.NODE: "all tasks of this node",
    }[scope]
    kind = InvalidRequestError if alone > most else TakenError
    return kind(
        f"{what} would have {alone} {name}{where}: expected at most {max(0, most - has)}, "
        f"since the limit of {whose} is {most}, of which {has} are in use.",
        "Request less or end tasks; the operator sets disk_copy_mb in solo5.toml(5)."
        if name == Resource.COPIED
        else f"Request less or end tasks; the operator sets limits.{scope} in solo5.toml(5).",
    )
