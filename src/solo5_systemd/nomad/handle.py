"""What Nomad keeps of a task for us: enough to prove that a unit is the one that was started, and nothing else.

Nomad stores it once, in its client's database, and hands it back to RecoverTask after any crash. It holds no arguments
and no environment: what is secret in a job is not ours to write down.
"""

import json
from dataclasses import dataclass

from solo5_systemd.decode import Fields, json_document
from solo5_systemd.engine.task import Task
from solo5_systemd.errors import InvalidRequestError, NoSuchTaskError
from solo5_systemd.names import TaskName, log_namespace, task_name
from solo5_systemd.nomad.config.ready import Watched, watched
from solo5_systemd.nomad.config.values import Logging, choice
from solo5_systemd.workload import UnitKind

VERSION = 2
"""1: without `ready`."""


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """The driver's part of a task handle.

    Attributes:
        task: its name on this host.
        unit: the transient unit.
        invocation: systemd's id of this one run of it.
        boot: the kernel's boot id; a unit does not outlive its boot.
        started: microseconds since the epoch.
        kind: service or scope.
        logging: where its console goes.
        ready: what is asked of the guest to see whether it stays ready, None for nothing.
        log_namespace: the journal namespace that its console is in; empty: the host's journal.
    """

    task: TaskName
    unit: str
    invocation: str
    boot: str
    started: int
    kind: UnitKind
    logging: Logging
    ready: Watched | None = None
    log_namespace: str = ""


def encode(state: DriverState) -> bytes:
    return json.dumps({"version": VERSION, **_plain(state)}, separators=(",", ":")).encode()


def _plain(state: DriverState) -> dict[str, object]:
    ready = {"ready": state.ready.plain()} if state.ready else {}
    namespace = {"log_namespace": state.log_namespace} if state.log_namespace else {}
    return (
        ready
        | namespace
        | {
            "task": state.task,
            "unit": state.unit,
            "invocation": state.invocation,
            "boot": state.boot,
            "started": state.started,
            "kind": state.kind.value,
            "logging": state.logging.value,
        }
    )


def decode(data: bytes) -> DriverState:
    """Read what `encode` of this or an earlier version wrote.

    Raises:
        InvalidRequestError: it is damaged, or of a later version.
    """
    fields = Fields(json_document(data, "the task's stored state"), "driver_state")
    _refuse_later(fields.integer("version", low=1, high=1 << 31))
    return DriverState(
        task=fields.parsed("task", task_name),
        unit=fields.text("unit"),
        invocation=fields.text("invocation"),
        boot=fields.text("boot"),
        started=fields.integer("started", low=0, high=1 << 62),
        kind=choice(fields, "kind", UnitKind) or UnitKind.SERVICE,
        logging=choice(fields, "logging", Logging) or Logging.NOMAD,
        ready=watched(fields.table("ready")) if fields.has("ready") else None,
        log_namespace=fields.parsed("log_namespace", log_namespace, ""),
    )


def _refuse_later(version: int) -> None:
    if version > VERSION:
        raise InvalidRequestError(
            f"the task's stored state is of version {version}: expected at most {VERSION}, which this driver knows.",
            "A later driver has started the task: with that one it is taken up again, with this one started anew.",
        )


# Is a unit the one that a stored handle speaks of? Adopted on proof, never by name alone.


def adopt(stored: DriverState, boot: str, found: Task | None) -> Task:
    """The task, running or ended.

    Args:
        stored: what the handle says.
        boot: the kernel's boot id now.
        found: what PID 1 has under the task's name; None for nothing.

    Raises:
        NoSuchTaskError: it is gone, or another run has its name; Nomad then starts the task anew.
    """
    if stored.boot != boot:
        raise NoSuchTaskError(f"task {stored.task} ended with the host's last boot.")
    if found is None:
        raise NoSuchTaskError(f"task {stored.task} is gone: systemd has no unit {stored.unit}, nor how it ended.")
    if found.invocation != stored.invocation:
        raise NoSuchTaskError(
            f"task {stored.task} is gone: {stored.unit} is another run now ({found.invocation or 'none'}; "
            f"expected {stored.invocation})."
        )
    return found
