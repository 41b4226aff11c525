"""Metrics as text, in two dialects that differ in little: OpenMetrics 1.0, and the older one of Prometheus (0.0.4).

The older has its reader in node exporter's collector of text files. It names a counter with its `_total`, knows neither
UNIT nor EOF, and takes a whole file for damaged where a type is none of its own, such as `info`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

Labels = Mapping[str, str]

UNITS = ("bytes", "seconds", "ratio")
"""A metric's name ends with its unit, where it has one."""


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, kw_only=True)
class Family:
    """One metric with all its labelled values.

    Attributes:
        name: without a counter's `_total`.
        kind: its type.
        help: a sentence.
        values: labels that are empty are left out, as Prometheus itself has it.
    """

    name: str
    kind: Kind
    help: str
    values: Sequence[tuple[Labels, float]]


def openmetrics(families: Iterable[Family]) -> str:
    """A whole exposition, families without a value left out."""
    return "".join(_openmetrics(family) for family in families if family.values) + "# EOF\n"


def prometheus(families: Iterable[Family]) -> str:
    """The same for readers of the older dialect."""
    return "".join(_prometheus(family) for family in families if family.values)


def _openmetrics(family: Family) -> str:
    name, unit = family.name, family.name.rpartition("_")[2]
    units = f"# UNIT {name} {unit}\n" if unit in UNITS else ""
    head = f"# TYPE {name} {family.kind}\n{units}# HELP {name} {_quoted(family.help)}\n"
    return head + "".join(_lines(family))


def _prometheus(family: Family) -> str:
    name, text = _sample_name(family), family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n" + "".join(_lines(family))


def _lines(family: Family) -> Iterator[str]:
    for labels, value in family.values:
        pairs = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items() if text)
        yield f"{_sample_name(family)}{{{pairs}}} {value}\n" if pairs else f"{_sample_name(family)} {value}\n"


def _sample_name(family: Family) -> str:
    return f"{family.name}_total" if family.kind is Kind.COUNTER else family.name


def _quoted(text: str) -> str:
    """Escaped for quotes; what is no UTF-8 is replaced, since a reader would refuse the whole text."""
    whole = text.encode("utf-8", "replace").decode()
    return whole.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
