"""Which archives of a running task are older than their files: a guest keeps the archive of its start.

The lock file of a task has the SHA-256 of its archives, and how to read their files again.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.locks import closing
from solo5_systemd.settings.records import record
from solo5_systemd.storage.archive_files import write_archive
from solo5_systemd.storage.lock_records import disks_in, records_of_tasks
from solo5_systemd.storage.model import ArchiveRequest, DiskRequest


def outdated(task: str) -> Mapping[str, bool]:
    """Return whether the files of each archive of a running task have another SHA-256 now.

    Files that cannot be archived have another one, too. Archives of credentials are absent.

    Raises:
        HostError: the directory of locks cannot be read.
    """
    _, held = records_of_tasks().get(task, (set(), {}))
    return {request.disk: _digest_now(request) != start for request, start in _archives(held)}


def _archives(held: Mapping[str, object]) -> Iterator[tuple[DiskRequest, str]]:
    """Yield how to read the files of each archive of a lock file's record again, and its SHA-256 at the start."""
    sources = held.get("archives")
    starts = {disk.get("disk"): disk.get("sha256", "") for disk in disks_in(held)}
    for each in sources if isinstance(sources, list) else ():  # else of an earlier release
        request = record(DiskRequest, Fields(each))
        if start := starts.get(request.disk):
            yield request, start


def _digest_now(request: DiskRequest) -> str:
    with suppress(Solo5Error, OSError), closing(os.memfd_create("archive")) as nowhere:
        return write_archive(request, request.archive or ArchiveRequest(), nowhere)
    return ""
