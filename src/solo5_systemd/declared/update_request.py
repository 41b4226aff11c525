"""An update of a declared task: what is requested, and which tasks can be updated beside a running guest."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName, is_task_name
from solo5_systemd.declared.declaration import UPDATE_MAX_S, Declaration
from solo5_systemd.declared.readiness import Ready, ReadyPort, parse_ready
from solo5_systemd.image.manifest import Manifest
from solo5_systemd.network.model import PortRequest, Protocol
from solo5_systemd.settings.records import Type, text
from solo5_systemd.task.workload import Workload

_SUFFIX = ".next"
_MILLISECONDS = Type(
    lambda fields, key: fields.integer(key, low=0, high=round(1000 * UPDATE_MAX_S)) / 1000,
    lambda seconds: round(1000 * seconds),
)


@dataclass(frozen=True, kw_only=True)
class UpdateRequest:
    """What an operator has requested; what is None is that of the declaration.

    Attributes:
        image: path of the new image; empty: that of the declaration, which may have changed.
        ready: what makes the new guest ready.
        timeout: seconds in which it has to become ready.
        drain: seconds that connections may last after their ports were moved.
        watch: seconds of the new guest before the old one is stopped.
        pause: stop the old guest before the new one is started.
    """

    image: str = ""
    ready: Annotated[Ready | None, text(partial(parse_ready, option="ready"))] = None
    timeout: Annotated[float | None, _MILLISECONDS] = None
    drain: Annotated[float | None, _MILLISECONDS] = None
    watch: Annotated[float | None, _MILLISECONDS] = None
    pause: bool = False

    def completed(self, declaration: Declaration) -> "UpdateRequest":
        """Return the request with the values of the declaration where it has none."""
        keys = [key for key in ("ready", "timeout", "drain", "watch") if getattr(self, key) is None]
        return replace(self, **{key: getattr(declaration, key) for key in keys})


def next_task(task: TaskName) -> TaskName:
    """Return the name of the task that runs the new image beside `task`: `web.next` of `web`, `web.next.1` of `web@1`.

    `web@1.next` would be another instance of the template. No two tasks have the same one: the first `.next.` is the
    place of the `@`, and only a name without `@` has one that ends with `.next`.

    Raises:
        InvalidRequestError: it would be too long, or could be that of another task.
    """
    prefix, at, instance = task.partition("@")
    if at and (_SUFFIX in prefix or f".{instance}".endswith(_SUFFIX)):
        raise InvalidRequestError(
            f"task {task} cannot have another one beside it: expected a template without {_SUFFIX!r} in its name, and "
            f"an instance that does not end with {_SUFFIX.removeprefix('.')!r}.",
            f"Replace the image, then: systemctl restart {task}",
        )
    name = f"{prefix}{_SUFFIX}" + (f".{instance}" if at else "")
    if not is_task_name(name):
        raise InvalidRequestError(
            f"task {task} cannot have another one beside it, named {name}: expected at most "
            f"{128 - len(_SUFFIX)} characters."
        )
    return TaskName(name)


def check_beside(workload: Workload, ports: Collection[PortRequest]) -> None:
    """Refuse a task of which no second guest can run beside the first, or whose ports cannot be moved to it.

    Raises:
        InvalidRequestError: with the reason, and what to do.
    """
    # Each start makes its own archives and private copies.
    shared = [disk.disk for disk in workload.disks if not (disk.private or disk.archive)]
    if shared:
        reason = f"disk {shared[0]} has one writer"
    elif workload.namespace:
        reason = f"it shares network namespace {workload.namespace} with other programs"
    elif not ports:
        reason = "it publishes no port that could be moved"
    else:
        return
    raise InvalidRequestError(
        f"task {workload.name} cannot be updated without a pause, since {reason}: expected --pause.",
        f"solo5ctl update --pause {workload.name} stops the old guest first, and states for how long none answered.",
    )


def check_same_devices(image: str, new: Manifest, old: Manifest) -> None:
    """Refuse an image with other devices than the running one.

    Raises:
        InvalidRequestError: with the devices of both.
    """
    if {*new.devices} != {*old.devices}:
        has, had = (", ".join(sorted(map(str, manifest.devices))) or "none" for manifest in (new, old))
        raise InvalidRequestError(
            f"{image} has the devices {has}: expected those of the running image ({had}).",
            "Change the declaration, and then: systemctl daemon-reload && systemctl restart",
        )


def ready_by(wanted: Ready | None, ports: Collection[PortRequest]) -> Ready | None:
    """Return what makes a new guest ready: what is wanted, or that its first published TCP port answers.

    None: that it runs.
    """
    tcp = (ReadyPort(protocol=port.protocol, port=port.port) for port in ports if port.protocol is Protocol.TCP)
    return wanted or next(tcp, None)
