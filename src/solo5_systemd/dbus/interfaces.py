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
class Member:
    """A method or a signal.

    Attributes:
        in_signature: D-Bus signature of a method's arguments.
        out_signature: D-Bus signature of a method's reply, or of a signal's arguments.
        names: of arguments and results, separated by blanks.
    """

    in_signature: str
    out_signature: str
    names: str


@dataclass(frozen=True, kw_only=True)
class Interface:
    """An interface of one object; its name is the bus name of the service, too."""

    name: str
    path: str
    methods: Mapping[str, Member]
    signals: Mapping[str, Member] = field(default_factory=dict)


NETWORK1 = Interface(
    name="org.solo5.Network1",
    path="/org/solo5/Network1",
    methods={
        "Reserve": Member(f"s{RECORD}", RECORDS, "task request leases"),
        "Preview": Member(f"s{RECORD}", f"{RECORDS}s", "task request leases nft"),
        "Attach": Member("s", "", "task"),
        "MovePorts": Member("ss", "", "source target"),
        "Release": Member("s", "", "task"),
        "Sleep": Member("s", "", "task"),
        "Wake": Member("s", "", "task"),
        "Awake": Member("s", "s", "task because"),
        "Leases": Member("", RECORDS, "records"),
        "Networks": Member("", RECORD, "networks"),
        "Collect": Member("b", "as", "dry_run collected"),
    },
    signals={"Repaired": Member("", "ass", "tasks resource"), "SleepChanged": Member("", "sbs", "task asleep reason")},
)
"""The interface of solo5-networkd."""

RELAY1 = Interface(
    name="org.solo5.Relay1",
    path="/org/solo5/Relay1",
    methods={
        "Forward": Member("sssthh", "", "namespace task unit since stdout stderr"),
        "Drain": Member("s", "b", "task delivered"),
        "List": Member("", "as", "tasks"),
    },
    signals={"Gap": Member("", "st", "task lines")},
)
"""The interface of solo5-relay."""
