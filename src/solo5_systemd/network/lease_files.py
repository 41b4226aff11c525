"""The files of networks below /run/solo5/network.

    tasks/TASK.json        the lease record, from the reservation until the release
    requests/TASK.json     the task's request: its lease record as it was reserved, until the task is removed
    requests/TASK.start    the mark of a start whose caller has attached the network
    networks/NAME.json     a network in use
    sysctls/before.json    the saved sysctls
    namespaces/KEY/        networks and sysctls of another network namespace than the host's
    repairs.json           the last repairs, newest first, with their times; the journal has all

The network service writes them. Engines make the marks, and remove a request with its task.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import Solo5Error, host_errors
from solo5_systemd.base.names import NetworkName, TaskName, hash_of
from solo5_systemd.network.model import LeaseRecord, LeaseState
from solo5_systemd.settings.network_policy import Network
from solo5_systemd.settings.records import document, record

if TYPE_CHECKING:
    from solo5_systemd.network.overview import Repair

STATE = Path("/run/solo5/network")

REPAIRS = "repairs.json"
REPAIRS_MAX = 50
REPAIRED_TASKS_MAX = 20
"""Names of tasks of one repair that are recorded. A repair of the tables concerns every task."""

_REQUESTS = "requests"
_MARK = ".start"
_log = logging.getLogger(__name__)
T = TypeVar("T")

_lease_record, _network = partial(record, LeaseRecord), partial(record, Network)


def read_lease_records() -> tuple[LeaseRecord, ...]:
    """Return the lease records of all tasks, ordered by name; unreadable files are skipped, for other users all."""
    try:
        files = _files(STATE / "tasks")
    except PermissionError:  # the directory is root's alone
        return ()
    return tuple(_read(files, _lease_record))


def read_lease_record(task: TaskName) -> LeaseRecord | None:
    """Return the lease record of a task; None where it is missing or unreadable."""
    return next(_read((_file(STATE / "tasks", task),), _lease_record), None)


def read_networks() -> tuple[Network, ...]:
    """Return the networks in use, ordered by name; unreadable files are skipped."""
    return tuple(_read(_files(STATE / "networks"), _network))


def read_repairs() -> "tuple[Repair, ...]":
    """Return the recorded repairs, newest first; none where the file is missing or damaged."""
    from solo5_systemd.network.overview import Repair  # imported here for startup time: a start reads none

    with suppress(OSError, Solo5Error):
        fields = Fields(json_document((STATE / REPAIRS).read_bytes(), REPAIRS))
        return tuple(record(Repair, each) for each in fields.tables("repairs"))
    return ()


def has_lease(task: TaskName) -> bool:
    """Return whether the task has a lease record, intact or damaged."""
    return os.path.lexists(_file(STATE / "tasks", task))


@contextmanager
def start_mark(task: TaskName) -> Iterator[None]:
    """Mark a start whose caller has attached the network: PID 1 then skips `units/solo5-network@.service`.

    The mark is a symbolic link to the task's request, through a descriptor of this process in /proc. After a kill it
    leads nowhere, also when another process has the same PID. Without a mark, a start calls Attach a second time.
    """
    requests = STATE / _REQUESTS
    try:
        descriptor = os.open(requests, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # removed by another program
        yield
        return
    mark = requests / f"{task}{_MARK}"
    try:
        with suppress(OSError):
            mark.unlink(missing_ok=True)  # of a start that was killed
            mark.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}/{task}.json")
        yield
    finally:
        with suppress(OSError):
            mark.unlink(missing_ok=True)
        os.close(descriptor)


def remove_request(task: TaskName) -> None:
    """Remove the request of a task, and the mark of a killed start; idempotent. Raises HostError."""
    requests = STATE / _REQUESTS
    with host_errors(f"the request of task {task} cannot be removed from {requests}"):
        for end in (".json", _MARK):
            _remove(f"{requests}/{task}{end}")


class LeaseStore:
    """The files of the tasks and networks of one network namespace, by its path; empty: the host's own.

    Writes are atomic (rename(2)), and raise HostError. A file that cannot be read was damaged by hand: it is removed,
    with a log line.

    Attributes:
        own: the directory of what is this namespace's alone.
    """

    def __init__(self, namespace: str = "") -> None:
        self._namespace = namespace
        self._tasks = STATE / "tasks"
        self._requests = STATE / _REQUESTS
        self.own = STATE / "namespaces" / _key(namespace) if namespace else STATE
        self._networks = self.own / "networks"
        self._sysctls = self.own / "sysctls"

    def lease_records(self) -> Iterator[LeaseRecord]:
        """Load the lease records of this namespace, one at a time: `Leases` keeps less of each.

        A damaged one becomes that of the task's request, as attached: without a run, the task is then released.
        """
        files = _files(self._tasks)
        yield from filter(self._is_own, _read(files, _lease_record, removes_damaged=True))
        for task in (TaskName(Path(path).stem) for path in files if not os.path.lexists(path)):
            if (kept := self.request(task)) is not None:
                _log.warning("the lease record of task %s is restored from its request", task)
                restored = replace(kept, state=LeaseState.ATTACHED)
                self.save_lease_record(restored)
                yield from filter(self._is_own, (restored,))

    def _is_own(self, record: LeaseRecord) -> bool:
        return record.namespace == self._namespace

    def others(self) -> Sequence[LeaseRecord]:
        """Load the lease records of other namespaces than this one."""
        records = _read(_files(self._tasks), _lease_record)
        return tuple(record for record in records if not self._is_own(record))

    def remove_namespaces(self, but: Iterable[str]) -> None:
        """Remove the directories of all other namespaces but these."""
        kept = set(map(_key, but))
        for directory in (STATE / "namespaces").glob("*"):
            if directory.name not in kept:
                _remove_tree(directory)

    def remove_namespace(self) -> None:
        """Remove the directory of a namespace that has neither networks nor tasks; idempotent."""
        if self._namespace:  # `own` of the host's is STATE itself, with the files of all
            _remove_tree(self.own)

    def networks(self) -> dict[NetworkName, Network]:
        """Load all networks in use, by name."""
        return {each.name: each for each in _read(_files(self._networks), _network, removes_damaged=True)}

    def sysctls(self) -> Mapping[str, str]:
        """Load the saved sysctl values; empty where none were saved."""
        return next(_read(_files(self._sysctls), _texts, removes_damaged=True), {})

    def save_lease_record(self, record: LeaseRecord) -> None:
        """Write the lease record of a task."""
        # The number is for programs of earlier builds, such as a plugin that runs through an upgrade.
        _write(_file(self._tasks, record.reservation.task), {"version": 1, **document(record)})

    def keep_request(self, task: TaskName) -> None:
        """Keep the lease record of a task, as it is now, as its request: a second name (link(2)) of the same file."""
        record, request = _file(self._tasks, task), _file(self._requests, task)
        with host_errors(f"{request} cannot be made"):
            self._requests.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove(request)  # link(2) replaces no file
            os.link(record, request)

    def request(self, task: TaskName) -> LeaseRecord | None:
        """Load the request of a task; None without one."""
        kept = next(_read((_file(self._requests, task),), _lease_record, removes_damaged=True), None)
        return kept if kept and kept.reservation.task == task else None

    def save_network(self, network: Network) -> None:
        """Write the file of a network in use."""
        _write(_file(self._networks, network.name), document(network))

    def save_sysctls(self, before: Mapping[str, str]) -> None:
        """Write the sysctl values to restore later; of none there is no file."""
        path = _file(self._sysctls, "before")
        if before:
            _write(path, {**before})
        else:
            _remove(path)

    def remove_lease_record(self, task: TaskName) -> None:
        """Remove the lease record of a task; idempotent."""
        _remove(_file(self._tasks, task))

    def remove_network(self, name: NetworkName) -> None:
        """Remove the file of a network; idempotent."""
        _remove(_file(self._networks, name))

    def record_repair(self, repair: "Repair") -> None:
        """Add a repair to the file of the last ones; one that cannot be written is in the journal only."""
        others = max(0, len(repair.tasks) - REPAIRED_TASKS_MAX)
        new = replace(repair, time=time.time_ns() // 1000, tasks=repair.tasks[:REPAIRED_TASKS_MAX], others=others)
        kept = (new, *read_repairs())[:REPAIRS_MAX]
        text = json.dumps({"repairs": [document(each, complete=True) for each in kept]})
        with suppress(OSError):
            replace_file(STATE / REPAIRS, text)


def _remove_tree(directory: Path) -> None:
    import shutil  # imported here for startup time: it imports compressors

    shutil.rmtree(directory, ignore_errors=True)


def _key(namespace: str) -> str:
    """Return a file name for a path, such as `web-0f3a6c1d2b4e5f60`."""
    return f"{Path(namespace).name}-{hash_of(namespace, 16)}"


# Files are named by text, not by Path: that interns each name, in a table of CPython's that grows with all names that
# there ever were, by a kilobyte for each of a thousand tasks.


def _file(directory: Path, name: str) -> str:
    return f"{directory}/{name}.json"


def _files(directory: Path) -> Sequence[str]:
    try:
        names = os.listdir(directory)  # noqa: PTH208 - for strings
    except (FileNotFoundError, NotADirectoryError):  # no task has had a network since the boot
        return ()
    return [f"{directory}/{name}" for name in sorted(names) if name.endswith(".json") and not name.startswith(".")]


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - a text


def _texts(fields: Fields) -> Mapping[str, str]:
    return {name: fields.text(name) for name in fields}


def _read(paths: Iterable[str], parse: Callable[[Fields], T], *, removes_damaged: bool = False) -> Iterator[T]:
    """Yield the records of some files. Only the network service, their writer, removes those that it cannot read."""
    for path in paths:
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                yield parse(Fields(json_document(file.read(), "the file")))
        except FileNotFoundError:  # released since the directory was listed
            continue
        except (OSError, Solo5Error) as error:
            if removes_damaged:
                _remove(path)
                _log.warning("%s cannot be read (%s) and is removed", path, error)


def _write(path: str, content: dict[str, Any]) -> None:
    directory = path.rpartition("/")[0]
    with host_errors(f"{path} cannot be written", f"`df {directory}` shows the free space."):
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103
        replace_file(path, json.dumps(content))
