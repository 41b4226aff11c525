"""The addresses that declared tasks had last, to be had again after a restart or a reboot, and left alone by others.

    /var/lib/solo5/declared/NAME.json    the request of one task's last start, with the values of its leases; root's

A task's preparation writes it whenever it changes. The network service reads the addresses for each one that it
chooses: one stat(2) as long as no file has changed. A task with IdleAction=stop waits after a boot with that request.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.declared_units import SOURCES, declaration_directory
from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import Solo5Error, host_errors
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName, is_task_name
from solo5_systemd.base.own_files import read_own
from solo5_systemd.base.paths import version_of
from solo5_systemd.network.ipam import Remembered
from solo5_systemd.network.model import IpAddress, NicRequest, Request
from solo5_systemd.settings.records import document, record

ADDRESSES = Path("/var/lib/solo5/declared")

_SUFFIX = ".json"
_FILE_MAX_BYTES = 256 << 10
"""A NIC takes some 100 bytes, and a destination of its egress list some 20."""

_TIME_SETTLE_S = 2.0
"""The time of a directory does not reveal a change that is younger: on some file systems it has a resolution of 1 s."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LastRequest(Request):
    """The request of a declared task's last start, with the values of its leases, and the `declaration_digest`."""

    declaration: str = ""

    def with_addresses(self, nic: NicRequest) -> NicRequest:
        """Return a NIC with its last addresses where the request leaves them open, if it is on the same network."""
        same = (each for each in self.nics if (each.nic, each.network) == (nic.nic, nic.network))
        return nic.or_else(next(same, nic))


def declaration_digest(task: TaskName) -> str:
    """Return a digest of the files of a task's declaration as they are in effect; empty: there are none."""
    try:
        with open(f"{declaration_directory(task)}/{SOURCES}", "rb") as sources:  # noqa: PTH123 - no Path, as in lease_files
            return sha256(sources.read()).hexdigest()
    except OSError:
        return ""


def read_request(task: TaskName) -> LastRequest:
    """Return the request of a task's last start; without a NIC if there is no file.

    Raises:
        InvalidRequestError: the file is malformed.
        SettingsError: it cannot be read, or is not only root's (`read_own`).
    """
    path = f"{ADDRESSES}/{task}{_SUFFIX}"
    if not os.path.lexists(path):
        return LastRequest()
    return record(LastRequest, Fields(json_document(read_own(path, _FILE_MAX_BYTES)[0], "the file")))


def write_request(task: TaskName, request: LastRequest) -> None:
    """Write the request of a task's start, to stable storage; raises HostError."""
    path = ADDRESSES / f"{task}{_SUFFIX}"
    with host_errors(f"{path} cannot be written", f"`df {ADDRESSES}` shows the free space."):
        ADDRESSES.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(document(request)), durable=True)


class RememberedAddresses:
    """The addresses that all declared tasks had last, for a process that reads them often. Not thread-safe.

    A damaged file is left out, with a line in the log.
    """

    def __init__(self) -> None:
        self._stamp: tuple[int, ...] = ()
        # By task: a file's version and its NICs, none of a damaged one. The version is a hash of `version_of`, which is
        # smaller. A file is replaced and never written again: the next one has another inode.
        self._files: dict[TaskName, tuple[int, tuple[NicRequest, ...]]] = {}
        self._remembered: Remembered = {}

    def __call__(self) -> Remembered:
        """Return the address of each NIC, with its task; empty where the directory cannot be read."""
        now = time.time()
        try:
            status = ADDRESSES.stat()
        except OSError:
            self._stamp, self._files, self._remembered = (), {}, {}
            return self._remembered
        stamp = status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        if stamp != self._stamp:
            self._files = dict(self._changed())
            nics = [(task, nic) for task, (_, own) in self._files.items() for nic in own]
            values = ((value, task) for task, nic in nics for value in (nic.ipv4, nic.ipv6, nic.mac))
            self._remembered = {value: task for value, task in values if value is not None}
            is_settled = abs(now - max(stamp[1:]) / 1e9) >= _TIME_SETTLE_S
            self._stamp = stamp if is_settled else ()
        return self._remembered

    def of_network(self, name: NetworkName) -> Collection[IpAddress]:
        """Return the addresses of one network, as they were at the last call; a new one has their range again."""
        nics = [nic for _, own in self._files.values() for nic in own if nic.network == name]
        return frozenset(address for nic in nics for address in (nic.ipv4, nic.ipv6) if address is not None)

    def request(self, task: TaskName) -> Request | None:
        """Return the request of a task's last start; None: unknown, or its declaration has changed since."""
        try:
            found = read_request(task)
        except Solo5Error:
            return None
        return found if found.nics and found.declaration == declaration_digest(task) else None

    def _changed(self) -> Iterator[tuple[TaskName, tuple[int, tuple[NicRequest, ...]]]]:
        """Yield each file, read anew if it is not the one of the last time."""
        with suppress(OSError), os.scandir(ADDRESSES) as entries:  # removed since
            for entry in entries:
                task = TaskName(entry.name.removesuffix(_SUFFIX))
                if task == entry.name or not is_task_name(task):  # such as a file that is being written
                    continue
                with suppress(FileNotFoundError):  # removed since: read again at the next call
                    version = hash(version_of(entry.stat(follow_symlinks=False)))
                    known = self._files.get(task)
                    yield task, known if known and known[0] == version else (version, self._nics(task))

    def _nics(self, task: TaskName) -> tuple[NicRequest, ...]:
        try:
            return tuple(map(_slim, read_request(task).nics))
        except Solo5Error as error:
            _log.warning("the addresses that declared task %s had last are not known: %s", task, error)
            return ()


def _slim(nic: NicRequest) -> NicRequest:
    """Return the network and the addresses of a request, of which only these take memory of their own."""
    return NicRequest(
        nic=DeviceName(sys.intern(nic.nic)),
        network=NetworkName(sys.intern(nic.network)),
        ipv4=nic.ipv4,
        mac=nic.mac,
        ipv6=nic.ipv6,
    )
