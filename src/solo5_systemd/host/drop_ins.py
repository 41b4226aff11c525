"""Drop-ins of others that change the units of tasks, such as those for all services.

PID 1 merges them into transient units as well (systemd.unit(5)), after what the unit was made with: `User=` of
/etc/systemd/system/service.d/all.conf would be that of every tender, and `Restart=` run a finished guest again.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.errors import HostError, host_errors
from solo5_systemd.base.names import TASK_PREFIX
from solo5_systemd.task.properties import LIMITS, SETTABLE

UNITS = (
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)
"""Where PID 1 finds unit files and drop-ins (systemd.unit(5)); those of declared tasks are in /run/systemd/system."""

# Compiled at their first use, for startup time.
_LINE = r"(?m)^\s*(?:\[(?P<section>\w+)\]|(?P<key>\w+)\s*=)"
_HARMLESS = r"\w*Accounting|Timeout\w*"

EDITED = UNITS[0]
"""Where an administrator's are."""


def check_drop_ins(unit: str, *, declared: bool, directories: Sequence[str] = UNITS) -> None:
    """Check that drop-ins set of a task's unit only what operators may set of it: limits, and timeouts.

    Args:
        declared: those of its name or a prefix of it may set anything, as of any unit of an administrator.

    Raises:
        HostError: one sets something else, or cannot be read.
    """
    kind = unit.rpartition(".")[2]
    for file, (name, path) in sorted(merged_drop_ins(unit, directories).items()):
        if declared and name != kind:
            continue
        with host_errors(f"drop-in {path} cannot be read"):
            key = next(_harmful(path.read_text("utf-8-sig", "replace"), kind.capitalize()), None)
        if key is not None:
            whose = unit if declared else f"{TASK_PREFIX}.{kind}"
            raise HostError(
                f"drop-in {path} sets {key}= of {unit}, where the driver's own value is part of the sandbox or of "
                "restarts: expected limits only.",
                f"Hide it: mkdir -p {EDITED}/{whose}.d && ln -s /dev/null {EDITED}/{whose}.d/{file}"
                if name == kind
                else f"Remove {path}.",
            )


def merged_drop_ins(unit: str, directories: Sequence[str] = UNITS) -> Mapping[str, tuple[str, Path]]:
    """Return the drop-ins of a unit by file name, each with the name that its directory is for; one hides another."""
    found: dict[str, tuple[str, Path]] = {}
    for name in names_of_drop_ins(unit):
        for directory in reversed(directories):  # that of the highest precedence last: it hides the others
            below = f"{directory}/{name}.d"
            with suppress(OSError):  # there are few such directories
                found |= {file: (name, Path(below, file)) for file in os.listdir(below) if file.endswith(".conf")}  # noqa: PTH208 - for speed
    return found


def names_of_drop_ins(unit: str) -> Iterator[str]:
    """Yield the names to which `.d` is added for the directories of a unit's drop-ins, the most specific last.

    Its type, prefixes of its name that end in a dash, its template, and the unit (systemd.unit(5)).
    """
    stem, _, kind = unit.rpartition(".")
    prefix, at, _ = stem.partition("@")
    yield kind
    yield from (f"{prefix[: dash.end()]}.{kind}" for dash in re.finditer("-", prefix))
    if at:
        yield f"{prefix}@.{kind}"
    if unit != f"{prefix}@.{kind}":  # a template is that name already
        yield unit


def _harmful(text: str, section: str) -> Iterator[str]:
    current = ""
    for line in re.finditer(_LINE, text):
        current = line["section"] or current
        key = line["key"]
        if key and current == section and key not in (*SETTABLE, *LIMITS) and not re.fullmatch(_HARMLESS, key):
            yield key
