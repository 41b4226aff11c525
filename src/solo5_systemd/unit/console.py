"""How a task's lines are marked in the journal, on every one of them.

journald looks up most of what it adds to a line when it comes to it, and of a task that has just ended some of that is
gone (of 900 last lines, 43 had no invocation). The facility is the stream's own: it is never missing, and the journal
finds all lines of all tasks by it.
"""

FACILITY = 21
"""syslog's local5, as SYSLOG_FACILITY= has it: `journalctl --facility=local5` shows the consoles of all tasks."""

STDOUT_PRIORITY = 6
STDERR_PRIORITY = 4
"""syslog's "warning": what the tender's stderr is tagged with, and how it is known from the console (6, "info")."""
