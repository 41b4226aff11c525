"""Whether the journal stores consoles: `Storage=none` and `MaxLevelStore=` of journald.conf(5) drop them silently."""

import os
from contextlib import closing, suppress
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import INVOCATION_LINK, UNITS, TaskName, journald_of
from solo5_systemd.base.paths import open_in_thread
from solo5_systemd.journal.journald import open_stream
from solo5_systemd.journal.reader import JournalReader
from solo5_systemd.journal.sync import synchronize
from solo5_systemd.task.log_fields import STDOUT_PRIORITY

_WRITER = TaskName("solo5-systemd")

_storing: dict[str, str] = {}
"""The run of each journald that has stored a line; its configuration is that of its start."""


async def storage_problem(namespace: str = "") -> str:
    """Write a line as a guest does, read it back, and return why that fails; empty: consoles are stored.

    Each instance of journald is checked once, as long as it stores lines. Requires root.
    """
    journald = journald_of(namespace)
    run = ""
    with suppress(OSError):  # it is started by the first line
        run = str(Path(UNITS, f"{INVOCATION_LINK}{journald}").readlink())
    if run and _storing.get(journald) == run:
        return ""
    text = f"Checking whether consoles are stored: {os.urandom(8).hex()}"
    try:
        stream = await open_in_thread(lambda: open_stream(_WRITER, "", STDOUT_PRIORITY, namespace))
        try:
            os.write(stream, f"{text}\n".encode())
        finally:
            os.close(stream)
        await synchronize(_WRITER, namespace)
        with closing(JournalReader((f"MESSAGE={text}",), namespace)) as journal:
            is_stored = bool(journal.last(1))
    except HostError as error:
        return str(error)
    if not is_stored:
        file = f"/etc/systemd/journald{f'@{namespace}' if namespace else ''}.conf"
        return (
            f"{journald} stores no lines of level info, which consoles have: expected neither Storage=none nor "
            f"MaxLevelStore= below info in {file}. See: systemd-analyze cat-config {file.removeprefix('/etc/')}"
        )
    _storing[journald] = run
    return ""
