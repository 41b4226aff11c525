"""The D-Bus interfaces of the two services, and the types of their values.

A plain value is a boolean, an integer, a text, a list, or a table: `a{sv}` with the type of each value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

RECORD, RECORDS = "a{sv}", "aa{sv}"
"""A record by the names of its fields, `settings.records.document`, and a list of them."""


_SIMPLE = {str: "s", int: "t", bool: "b"}
"""The types of values that are no list or table. No integer of a record is negative."""


def type_of(value: object) -> str:
    """Return the type of a plain value; an empty list is one of texts."""
    if (simple := _SIMPLE.get(type(value))) is not None:
        return simple
    if isinstance(value, dict):
        return "a{st}" if value and {int}.issuperset(map(type, value.values())) else RECORD
    assert isinstance(value, list)  # noqa: S101 - a plain value
    return RECORDS if value and isinstance(value[0], dict) else "as"


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        in_signature: D-Bus signature of its arguments.
        out_signature: D-Bus signature of its reply.
        names: of arguments and results, separated by blanks.
    """

    in_signature: str
    out_signature: str
    names: str


@dataclass(frozen=True)
class Signal:
    """A signal.

    Attributes:
        signature: D-Bus signature of its arguments.
        names: of its arguments, separated by blanks.
    """

    signature: str
    names: str


@dataclass(frozen=True, kw_only=True)
class Interface:
    """An interface of one object.

    Attributes:
        name: of the interface, which is the bus name of the service too.
    """

    name: str
    path: str
    methods: Mapping[str, Method]
    signals: Mapping[str, Signal] = field(default_factory=dict)


NETWORK1 = Interface(
    name="org.solo5.Network1",
    path="/org/solo5/Network1",
    methods={
        "Reserve": Method(f"s{RECORD}", RECORDS, "task request leases"),
        "Preview": Method(f"s{RECORD}", f"{RECORDS}s", "task request leases nft"),
        "Attach": Method("s", "", "task"),
        "MovePorts": Method("ss", "", "source target"),
        "Release": Method("s", "", "task"),
        "Sleep": Method("s", "", "task"),
        "Wake": Method("s", "", "task"),
        "Awake": Method("s", "s", "task because"),
        "Leases": Method("", RECORDS, "records"),
        "Networks": Method("", RECORD, "networks"),
        "Collect": Method("b", "as", "dry_run collected"),
    },
    signals={"Repaired": Signal("ass", "tasks resource"), "SleepChanged": Signal("sbs", "task asleep reason")},
)
"""The interface of solo5-networkd."""

RELAY1 = Interface(
    name="org.solo5.Relay1",
    path="/org/solo5/Relay1",
    methods={
        "Forward": Method("sssthh", "", "namespace task unit since stdout stderr"),
        "Drain": Method("s", "b", "task delivered"),
        "List": Method("", "as", "tasks"),
    },
    signals={"Gap": Signal("st", "task lines")},
)
"""The interface of solo5-relay."""
