"""The dump of albatross-daemon: ASN.1 in DER, decoded with asn1crypto by the types below.

The daemon writes its unikernels to a file, `state` in its directory. The types are those of albatross 2.7 and of the
releases from 1.1 on (2021), each with another number of a CHOICE. Releases from 2.2 on write the policies, too.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from asn1crypto.core import (
    Boolean,
    Choice,
    Integer,
    Null,
    OctetString,
    Sequence,
    SequenceOf,
    UTF8String,
)

from solo5_systemd.declared.albatross import Dump, HostDevice, Unikernel
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.sanitize import bounded

VERSIONS = {3: "1.1", 4: "2.2", 5: "2.6", 6: "2.7"}
"""The first release of albatross with each number of the CHOICE; smaller ones are those of earlier releases."""

QUOTED_MAX = 120
"""Characters of a decoder's message in an error."""


class _SetOf(SequenceOf):  # type: ignore[misc]  # asn1crypto has no types
    """A SET OF that keeps its order, so that its encoding can be compared."""

    tag = 17


class _Integers(_SetOf):
    _child_spec = Integer


class _Texts(SequenceOf):  # type: ignore[misc]
    _child_spec = UTF8String


class _Kind(Choice):  # type: ignore[misc]
    _alternatives: ClassVar[list[Any]] = [("solo5", Null, {"explicit": 0}), ("bhyve", Null, {"explicit": 1})]


class _OnFailure(Choice):  # type: ignore[misc]
    _alternatives: ClassVar[list[Any]] = [("quit", Null, {"explicit": 0}), ("restart", _Integers, {"explicit": 1})]


class _Block(Sequence):  # type: ignore[misc]
    _fields: ClassVar[list[Any]] = [
        ("name", UTF8String),
        ("device", UTF8String, {"optional": True}),
        ("sector_size", Integer, {"optional": True}),
    ]


class _Blocks(_SetOf):
    _child_spec = _Block


class _Bridge(Sequence):  # type: ignore[misc]
    _fields: ClassVar[list[Any]] = [
        ("name", UTF8String),
        ("bridge", UTF8String, {"optional": True}),
        ("mac", OctetString, {"optional": True}),
    ]


class _Bridges(_SetOf):
    _child_spec = _Bridge


_HEAD: list[tuple[Any, ...]] = [("typ", _Kind), ("compressed", Boolean), ("image", OctetString)]
_STARTUP: list[tuple[Any, ...]] = [("startup", Integer, {"optional": True}), ("add_name", Boolean)]
_DEVICES: list[tuple[Any, ...]] = [
    ("blocks", _Blocks, {"explicit": 0, "optional": True}),
    ("bridges", _Bridges, {"explicit": 1, "optional": True}),
    ("arguments", _Texts, {"explicit": 2, "optional": True}),
]


class _Config3(Sequence):  # type: ignore[misc]
    _fields: ClassVar[list[Any]] = [
        *_HEAD,
        ("on_failure", _OnFailure),
        ("cpu", Integer),
        ("memory", Integer),
        *_DEVICES,
    ]


class _Config4(Sequence):  # type: ignore[misc]
    _fields: ClassVar[list[Any]] = [
        *_HEAD,
        *_STARTUP,
        ("on_failure", _OnFailure),
        ("cpu", Integer),
        ("memory", Integer),
        *_DEVICES,
    ]


class _Config5(Sequence):  # type: ignore[misc]
    _fields: ClassVar[list[Any]] = [
        *_HEAD, *_STARTUP, ("on_failure", _OnFailure), ("cpus", _Integers), ("memory", Integer), *_DEVICES,
        ("numcpus", Integer, {"explicit": 3, "optional": True}),
        ("boot_partition", UTF8String, {"explicit": 4, "optional": True}),
    ]  # fmt: skip


def _unikernels(config: type) -> type:
    """Return the type of a list of names and configurations."""
    pair = type("_Pair", (Sequence,), {"_fields": [("name", UTF8String), ("value", config)]})
    return type("_Unikernels", (SequenceOf,), {"_child_spec": pair})


class _Policy(Sequence):  # type: ignore[misc]
    _fields: ClassVar[list[Any]] = [
        ("cpus", type("_CpuIds", (SequenceOf,), {"_child_spec": Integer})),
        ("unikernels", Integer),
        ("memory", Integer),
        ("block", Integer, {"optional": True}),
        ("bridges", _Texts),
    ]


def _with_policies(config: type) -> type:
    return type(
        "_State", (Sequence,), {"_fields": [("unikernels", _unikernels(config)), ("policies", _unikernels(_Policy))]}
    )


class State(Choice):  # type: ignore[misc]
    """The whole file."""

    _alternatives: ClassVar[list[Any]] = [
        ("3", _unikernels(_Config3), {"explicit": 3}),
        ("4", _with_policies(_Config3), {"explicit": 4}),
        ("5", _with_policies(_Config4), {"explicit": 5}),
        ("6", _with_policies(_Config5), {"explicit": 6}),
    ]


def read_dump(data: bytes) -> Dump:
    """Decode a dump.

    Raises:
        InvalidRequestError: it is none, or of a release that is too old or too new.
    """
    _check_version(data)
    try:
        return _dump(_decoded(data))
    except Exception as error:
        reason = bounded(" ".join(str(error).split()), QUOTED_MAX)
        raise InvalidRequestError(
            f"the dump cannot be decoded: {reason}: expected the state file of albatross-daemon 1.1 to 2.7.",
            "A file that the daemon was writing is incomplete: stop the daemon, and copy it again.",
        ) from error


def _decoded(data: bytes) -> State:
    state: State = State.load(data, strict=True)
    # The library passes over fields that a type does not have and what follows a value, and reads what is BER only.
    if state.dump(force=True) != data:
        raise ValueError("it is not the encoding of its content")
    return state


def _dump(state: State) -> Dump:
    content = state.chosen
    unikernels = content if state.name == "3" else content["unikernels"]
    policies = () if state.name == "3" else content["policies"]
    return Dump(
        version=VERSIONS[int(state.name)],
        unikernels=tuple(_unikernel(pair["name"].native, pair["value"]) for pair in unikernels),
        policies=tuple(pair["name"].native for pair in policies),
    )


def _check_version(data: bytes) -> None:
    """Check the tag of the outer CHOICE: context-specific, constructed, and the number."""
    tag = data[0] if data else 0
    number = tag & 0x1F
    if tag & 0xE0 != 0xA0:
        raise InvalidRequestError(
            "the file is no dump of albatross: expected the file `state` of albatross-daemon, in ASN.1 (DER)."
        )
    if number not in VERSIONS:
        age = f"{'before 1.1' if number < min(VERSIONS) else 'after 2.7'}: expected 1.1 to 2.7"
        raise InvalidRequestError(
            f"the dump is of a release of albatross {age}.",
            "A daemon of 1.1 or later reads an older dump, and writes a new one.",
        )


def _unikernel(name: str, config: Any) -> Unikernel:
    cpus = config["cpus"].native if "cpus" in _names(config) else [config["cpu"].native]
    restart = config["on_failure"]
    return Unikernel(
        name=name,
        is_solo5=config["typ"].name == "solo5",
        compressed=config["compressed"].native,
        image=config["image"].native,
        startup=_optional(config, "startup"),
        add_name=bool(_optional(config, "add_name")),
        restart=tuple(restart.chosen.native) if restart.name == "restart" else None,
        cpus=tuple(cpus),
        memory=config["memory"].native,
        blocks=tuple(_devices(config["blocks"], "device")),
        bridges=tuple(_devices(config["bridges"], "bridge")),
        arguments=tuple(config["arguments"].native or ()),
    )


def _names(config: Any) -> set[str]:
    return {field[0] for field in config._fields}


def _optional(config: Any, name: str) -> Any:
    return config[name].native if name in _names(config) else None


def _devices(devices: Any, host: str) -> Iterator[HostDevice]:
    for each in devices if devices.native else ():
        yield HostDevice(
            name=each["name"].native,
            host=each[host].native,
            sector_size=_optional(each, "sector_size"),
            mac=_optional(each, "mac"),
        )
