"""How a task's lines are marked in the journal, on every one of them.

journald looks up most of what it adds to a line when it comes to it, and of a task that has just ended some of that is
gone (of 900 last lines, 43 had no invocation). The facility is the stream's own: it is never missing, and the journal
finds all lines of all tasks by it.
"""

RATE_INTERVAL = 2_000_000
"""Microseconds."""

RATE_BURST = 2000
"""Lines of each stream of a task that journald takes in an interval, and several times as many while it has room: four
with 4 GiB that it may still use, six with 1 TiB. The relay forwards 30 000 lines a second."""

FACILITY = 21
"""syslog's local5, as SYSLOG_FACILITY= has it: `journalctl --facility=local5` shows the consoles of all tasks."""

STDOUT_PRIORITY = 6
STDERR_PRIORITY = 4
"""syslog's "warning": what the tender's stderr is tagged with, and how it is known from the console (6, "info")."""
