"""Text exposition formats: OpenMetrics 1.0 and Prometheus 0.0.4.

node_exporter's textfile collector parses Prometheus 0.0.4. In that format a counter's TYPE line has the `_total`, there
is no UNIT and no EOF, and an unknown type such as `info` makes the parser reject the whole file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

Labels = Mapping[str, str]

UNITS = ("bytes", "seconds", "ratio")
"""Suffixes of a metric's name that are its unit."""


class Kind(StrEnum):
    """The metric types in use; both formats have them."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A metric family.

    Attributes:
        name: without a counter's `_total`.
        kind: the type.
        help: one sentence.
        values: labels and value of each sample. Empty labels are omitted: to Prometheus, an empty label is an absent
            one.
    """

    name: str
    kind: Kind
    help: str
    values: Sequence[tuple[Labels, float]]


def openmetrics(families: Iterable[Family]) -> str:
    """Return an OpenMetrics 1.0 exposition; families without samples are omitted."""
    return "".join(_openmetrics(family) for family in families if family.values) + "# EOF\n"


def prometheus(families: Iterable[Family]) -> str:
    """Return a Prometheus 0.0.4 exposition; families without samples are omitted."""
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
    name = _sample_name(family)
    for labels, value in family.values:
        pairs = ",".join([f'{label}="{_quoted(text)}"' for label, text in labels.items() if text])
        yield f"{name}{{{pairs}}} {value}\n" if pairs else f"{name} {value}\n"


def _sample_name(family: Family) -> str:
    return f"{family.name}_total" if family.kind is Kind.COUNTER else family.name


@cache
def _quoted(text: str) -> str:
    """Return text escaped for double quotes; lone surrogates are replaced, as parsers reject invalid UTF-8."""
    whole = text.encode("utf-8", "replace").decode()
    return whole.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
