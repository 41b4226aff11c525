"""The unit's properties for a task's console: the journal, its fields, and the rate of its lines."""

from collections.abc import Iterator, Mapping

from solo5_systemd.base.names import TaskName
from solo5_systemd.task.log_fields import FACILITY, assignment
from solo5_systemd.task.properties import Property, unit_property

RATE_INTERVAL_US = 2_000_000
"""LogRateLimitIntervalSec= of a task, in microseconds."""

RATE_BURST = 2000
"""LogRateLimitBurst= of a task: lines per stream and interval. journald multiplies it by the space that it may still
use (burst_modulate() of systemd): 4 times with 4 GiB, 6 times with 1 TiB. The relay forwards 30 000 lines a second."""


def console(name: TaskName, namespace: str, fields: Mapping[str, str]) -> Iterator[Property]:
    """Yield the properties that connect a task's stdout and stderr to the journal."""
    yield unit_property("StandardOutput", "journal")
    if namespace:
        yield unit_property("LogNamespace", namespace)
    yield unit_property("SyslogIdentifier", name)
    yield unit_property("SyslogFacility", FACILITY)
    # "<3>…" in a guest's output is text, not a priority.
    yield unit_property("SyslogLevelPrefix", False)
    yield unit_property("LogRateLimitIntervalUSec", RATE_INTERVAL_US)
    yield unit_property("LogRateLimitBurst", RATE_BURST)
    yield unit_property("LogExtraFields", [assignment(key, value) for key, value in fields.items()])
