"""From a task that runs to a unit file without this project's programs: `solo5ctl export --unit`.

What PID 1 has of the task's unit stays as it is, so the sandbox does. What each start makes is written out: the
tender's command line, the addresses, the user, the paths of image and disks. Only the network is a service's, which
opens the way to a tap, and closes it.
"""

from collections.abc import Iterable, Iterator

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import NETWORK_NAMESPACES, network_service, task_service
from solo5_systemd.base.sanitize import printable
from solo5_systemd.dbus.values import RECORD, busctl_words
from solo5_systemd.declared.exported_declaration import RunningTask
from solo5_systemd.declared.writer import quoted_word
from solo5_systemd.network.model import Reservation
from solo5_systemd.settings.records import document
from solo5_systemd.storage.model import Backing
from solo5_systemd.task.log_fields import NETWORK_NAMESPACE
from solo5_systemd.unit.tender import DISKS, LAUNCHER

USER = "solo5"
"""The package's user, which may attach to the taps of a task without a user of its own."""

_OURS = ("solo5-prepare@", "solo5-outcome", "solo5-network@")
_DEPENDENCIES = frozenset({"Wants", "Requires", "After"})
_OF_A_START = frozenset(
    {
        *("SourcePath", "AssertPathExists"),
        *("EnvironmentFile", "ExecStart", "ExecReload", "RootDirectoryStartOnly", "User"),
        *("StandardInput", "StandardError", "NetworkNamespacePath", "PrivateNetwork"),
    }
)
_SHA256 = "SOLO5_IMAGE_SHA256="
"""Of an image that may be replaced."""

_CALL = ("/usr/bin/busctl", "--quiet", "call", "org.solo5.Network1", "/org/solo5/Network1", "org.solo5.Network1")
_REQUESTS = "/run/solo5/network/requests"
"""With what a restart of a task by systemd attaches again; each start of a static unit reserves anew."""

_OUTSIDE = "/usr/bin/nsenter --mount=/proc/1/ns/mnt -- /bin/sh"
"""A shell in the host's mount namespace: PID 1 gives one of its own to each process of a unit with RootDirectory=."""

_REMOVE_NAMESPACE = "umount --lazy {path} 2>/dev/null || :; rm --force {path}"
_MAKE_NAMESPACE = (
    f"{_REMOVE_NAMESPACE}; mkdir --parents {NETWORK_NAMESPACES}; touch {{path}}; "
    "mount --bind /proc/self/ns/net {path}; ip link set lo down; "
    "for each in /proc/sys/net/ipv6/conf/all /proc/sys/net/ipv6/conf/default; do "
    "[ ! -e $each ] || echo 1 >$each/disable_ipv6; done"
)
"""PID 1 makes the namespace with the unit's first process, and solo5-networkd finds it by its path."""


def exported_unit(task: RunningTask, text: str) -> str:
    """Return the unit file of a task that runs.

    Args:
        text: of the unit file that PID 1 has for it, transient or not.

    Raises:
        InvalidRequestError: the task has what a static unit cannot have.
    """
    _check(task)
    sections: dict[str, list[str]] = {"Unit": [], "Service": [], "Install": []}
    section = ""
    for line in text.split("\n"):  # not splitlines(): a value may have what only Unicode takes for the end of a line
        if line.startswith("["):
            section = line.strip("[]")
        elif section in sections and (kept := _kept(line)) and kept not in sections[section]:
            sections[section].append(kept)
    starts = tuple(f"ExecStart=@{quote}{LAUNCHER}{quote} " for quote in ("", '"'))  # releases of systemd differ
    launcher = f"@{LAUNCHER} " if any(line.startswith(starts) for line in text.split("\n")) else ""
    image = task.argv[list(task.argv).index("--") + 1]
    sections["Service"] = list(_bound(sections["Service"], image, task))
    if not sections["Install"]:
        sections["Install"] = ["WantedBy=multi-user.target"]
    comments = "".join(f"# {printable(line)}\n" for line in _comments(task))
    # The bus alone would start the service, too, within its limit of activations for all users together.
    needs = "dbus.socket solo5-networkd.service" if task.reservation else "dbus.socket"
    body = (
        ("[Unit]", *sections["Unit"], f"Wants={needs}", f"After={needs}"),
        ("[Service]", *_programs(task, launcher), f"User={USER}", *sections["Service"]),
        ("[Install]", *sections["Install"]),
    )
    return comments + "\n" + "\n\n".join("\n".join(lines) for lines in body) + "\n"


def _check(task: RunningTask) -> None:
    made = [each["disk"] for each in task.disks if each.get("backing") in (Backing.COPY, Backing.ARCHIVE)]
    if made:
        raise InvalidRequestError(
            f"disk {made[0]} of task {task.name} is made at each start: expected a file or a block device.",
            "Without --unit, the declaration has it.",
        )
    if task.fields.get(NETWORK_NAMESPACE):
        raise InvalidRequestError(
            f"the network of task {task.name} is in a namespace of other programs, which may end with them: expected "
            "a NIC in the host's.",
            "Without --unit, the declaration has it.",
        )
    if "@" in task.name:
        raise InvalidRequestError(
            f"task {task.name} is an instance of a template, whose file has specifiers: expected a task of its own.",
            "Without --unit, the declaration has it.",
        )


def _kept(line: str) -> str:
    """Return a line of the unit file without what is this project's; empty: nothing is left."""
    key, equals, value = line.partition("=")
    if not equals or line.startswith("#") or key in _OF_A_START or _SHA256 in line:
        return ""
    if key in _DEPENDENCIES:
        words = [word for word in value.split() if not word.startswith(_OURS)]
        return f"{key}={' '.join(words)}" if words else ""
    return line


def _bound(lines: Iterable[str], image: str, task: RunningTask) -> Iterator[str]:
    """Yield the settings of [Service], with the image and the disks bound from where they are on the host."""
    sources = {image: task.fields["SOLO5_IMAGE"]}
    sources |= {f"{DISKS}/{each['disk']}": each["path"] for each in task.disks}
    for line in lines:
        key, _, value = line.partition("=")
        there = value.removesuffix(":norbind").rpartition(":")[2] if key.startswith("Bind") else ""
        if there in sources:
            yield f"{key}={_path(sources[there])}:{there}:norbind"
        else:
            yield line


def _programs(task: RunningTask, launcher: str) -> Iterator[str]:
    """Yield what is executed: root's part before the tender, the tender, and what follows its end."""
    yield from (f"ExecStartPre=+/usr/bin/chown {USER} {_word(each['path'])}" for each in task.disks)
    yield "PrivateNetwork=yes"
    if task.reservation and task.reservation.leases:
        path = task.reservation.namespace
        yield f"ExecStartPre=+{_OUTSIDE} -ec {_word(_MAKE_NAMESPACE.format(path=path))}"
        yield f"ExecStartPre=+{' '.join(map(_word, (*_CALL, 'Reserve', *_reserve(task.reservation))))}"
        yield f"ExecStartPre=+/usr/bin/systemctl start {network_service(task.name)}"
        yield f"ExecStopPost=+{' '.join((*_CALL, 'Release', 's', task.name))}"
        yield f"ExecStopPost=+/usr/bin/rm --force {_REQUESTS}/{task.name}.json"
        yield f"ExecStopPost=+{_OUTSIDE} -c {_word(_REMOVE_NAMESPACE.format(path=path))}"
    yield f"ExecStart={launcher}{' '.join(map(_word, task.argv))}"
    yield "RootDirectoryStartOnly=yes"


def _reserve(reservation: Reservation) -> Iterator[str]:
    """Yield the signature and the arguments of Reserve for busctl(1)."""
    yield f"s{RECORD}"
    yield reservation.task
    yield from busctl_words(document(reservation.request), RECORD)


def _comments(task: RunningTask) -> Iterator[str]:
    unit = task_service(task.name)
    yield f"Task {task.name} as it runs, written by solo5ctl export --unit, for /etc/systemd/system/{unit}."
    yield "With this name, solo5-networkd keeps its network as long as it runs, and solo5ctl ps has it."
    if task.reservation and task.reservation.leases:
        yield "Its addresses and ports are fixed. Each start reserves them, and fails where another task has one."
    if task.disks:
        yield "Its disks are not locked: nothing else may write to them."
    if any(key.startswith("NOMAD_") for key in task.fields):
        yield "It is a task of Nomad: stop the job before this starts, and copy the image, which is removed with it."


def _path(path: str) -> str:
    """Return a path for BindPaths= (systemd.exec(5)), where a colon separates."""
    return quoted_word(path).replace(":", "\\:")


def _word(text: str) -> str:
    """Return one word of a command line (systemd.service(5), COMMAND LINES)."""
    return quoted_word(text.replace("$", "$$"), plain="%$()")
