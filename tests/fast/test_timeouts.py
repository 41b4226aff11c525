"""docs/timeouts.md has every constant that bounds time, with its value, and the order that they keep."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module

import pytest
from tests.support.doc_tables import DOCS

ROOT = DOCS.parent
SOURCES = ROOT / "src" / "solo5_systemd"
PAGE = (DOCS / "timeouts.md").read_text()

UNITS = {"S": 1.0, "MS": 1e-3, "US": 1e-6}
_TARGETS = re.compile(r"^(_?[A-Z][A-Z0-9_, ]*) = ", re.MULTILINE)
_BOUND = re.compile(r"\b(_?[A-Z][A-Z0-9_]*_(S|MS|US))\b")
_LARGEST = (1 << 63) - 1
"""Of systemd; it bounds nothing."""
_SPANS = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}


@cache
def bounds() -> Mapping[str, tuple[float, ...]]:
    """Return every constant whose name ends with a unit of time, as `module.py:NAME`, its numbers in seconds."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        module = path.relative_to(SOURCES)
        for name, unit in _BOUND.findall(",".join(_TARGETS.findall(path.read_text()))):
            value = getattr(import_module(f"solo5_systemd.{'.'.join(module.with_suffix('').parts)}"), name)
            if value != _LARGEST:
                values = value if isinstance(value, tuple) else (value,)
                found[f"{module.as_posix()}:{name}"] = tuple(each * UNITS[unit] for each in values)
    return found


def setting(reference: str) -> float:
    """Return the seconds of `units/NAME:KEY=`."""
    path, _, key = reference.partition(":")
    line = re.search(rf"^{re.escape(key)}(\d+)([a-z]*)$", (ROOT / path).read_text(), re.MULTILINE)
    assert line, f"no {reference} in seconds"
    return int(line[1]) * _SPANS[line[2]]


def unit_property(reference: str) -> float:
    """Return the seconds of a task's unit property, as `unit/translate.py:KEYUSec`."""
    path, _, key = reference.partition(":")
    written = re.search(rf'unit_property\("{key}", (\d+) \* SECOND\)', (SOURCES / path).read_text())
    assert written, f"no {reference} in whole seconds"
    return float(written[1])


def seconds(reference: str) -> float:
    if reference.startswith("units/"):
        return setting(reference)
    if reference.endswith("USec"):
        return unit_property(reference)
    if re.fullmatch(r"[\d.]+ (?:ms|s|min)", reference):
        return span(reference)
    return bounds()[reference][0]


def span(text: str) -> float:
    count, _, unit = text.partition(" ")
    return float(count) * _SPANS[unit]


LISTED = re.findall(r"^\| `([\w/.]+:\w+)` \| ([\d.]+ (?:ms|s|min|h)(?:, [\d.]+ s)*) \| \S", PAGE, re.MULTILINE)
ORDER = re.findall(r"^\| ([^|]+) \| (<|≤|=) \| ([^|]+) \| \S", PAGE, re.MULTILINE)


def test_every_constant_is_listed_with_its_value() -> None:
    listed = {name: tuple(map(span, text.split(", "))) for name, text in LISTED}
    assert sorted(bounds().keys() - listed.keys()) == []
    assert [name for name, value in listed.items() if value != pytest.approx(bounds().get(name))] == []
    assert len(LISTED) == len(listed)


@pytest.mark.parametrize(("shorter", "relation", "longer"), ORDER, ids=lambda part: part.strip("`"))
def test_the_order_is_kept(shorter: str, relation: str, longer: str) -> None:
    one, other = (seconds(part.partition(" (")[0].strip("`")) for part in (shorter, longer))
    assert {"<": one < other, "≤": one <= other, "=": one == other}[relation], f"{one:g} s, {other:g} s"


def test_there_is_an_order() -> None:
    assert len(ORDER) >= 10
    assert PAGE.partition("\n## Order\n")[2].partition("\n## ")[0].count("\n| ") == len(ORDER) + 1
