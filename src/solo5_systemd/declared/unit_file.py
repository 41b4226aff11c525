"""The unit file of a declared task: the sandbox of every task, with constant paths for what each start prepares.

    /run/solo5/declared/NAME/environment    $SOLO5_DEVICES and $SOLO5_ARGUMENTS; only while prepared
    /run/solo5/declared/NAME/image          a symbolic link to the image in the store
    /run/solo5/declared/NAME/disks/DISK     a symbolic link to what was checked
    /run/solo5/declared/NAME/tender/stderr  what the tender writes to stderr, of bounded size

systemd reads the environment and resolves the links when it executes the tender, which is after solo5-prepare@NAME.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from solo5_systemd.base.names import (
    DECLARED,
    MARK,
    WAITING,
    awaited_target,
    declared_outcome_target,
    is_instance,
    prepare_service,
    user_of,
)
from solo5_systemd.declared.declaration import Declaration
from solo5_systemd.declared.syntax import specifiers
from solo5_systemd.image.manifest import Manifest, StoredImage
from solo5_systemd.network.model import Reservation
from solo5_systemd.storage.model import Disk
from solo5_systemd.task.properties import directive
from solo5_systemd.task.property_types import BOOLEAN
from solo5_systemd.unit.confinement import IMAGES
from solo5_systemd.unit.tender import Parts, Tender
from solo5_systemd.unit.translate import declared

DEVICE_NODES = "/dev/"
"""The beginning of the paths that DeviceAllow= takes (systemd.resource-control(5))."""

DEVICES, ARGUMENTS = "SOLO5_DEVICES", "SOLO5_ARGUMENTS"
"""The variables with the tender's options, and with the guest's arguments: systemd splits both into words."""

SANDBOX_IMAGE = f"{IMAGES}/unikernel"

NOT_RETRIED = "63 64"
"""Exit statuses of a guest that a restart repeats: --help, and a wrong argument (MirageOS, cmdliner)."""

_RELOAD_MARGIN_S = 10.0
"""What `systemctl reload` may take beyond Timeout=, for the start of the new guest."""

_START_TIMEOUT_S = 90.0
"""PID 1's own DefaultTimeoutStartSec= (systemd-system.conf(5))."""

_WAS_REFUSED = " was refused."
_REFUSED_SINCE = "\n# Refused since:\n"

_WAITED_FOR = ("After", "Requires", "BindsTo", "Requisite", "Wants")
_IN_SECTION = {ord(c): replacement for c, replacement in zip("[]'\"\\", "()’”/", strict=True)}
"""What a section's name cannot have: systemd then refuses the file."""

_ENDS = "reboot.target kexec.target poweroff.target halt.target rescue.target emergency.target"
SURVIVING = (
    "IgnoreOnIsolate=yes",
    "DefaultDependencies=no",
    "After=basic.target",
    f"Conflicts={_ENDS}",
    "Before=shutdown.target rescue.target emergency.target",
)
"""What a unit needs so that a soft reboot does not stop it, and any other does (systemd-soft-reboot.service(8))."""

SURVIVING_SLICE = "\n".join((f"{MARK}.", "[Unit]", *SURVIVING)) + "\n"
"""The drop-in of the slice of all tasks, where one of them survives a soft reboot."""

_SPECIFIER = re.compile("%(.)", re.DOTALL)


def parts_of(
    declaration: Declaration,
    *,
    tender: Tender,
    manifest: Manifest,
    groups: Sequence[str],
    systemd: int,
    log_namespace: str = "",
) -> Parts:
    """Return the parts of a unit that no start changes, with constant paths for the others."""
    workload = replace(declaration.workload, hosts=())  # host-gateway among them is known at the start
    # The memory is checked at the start, whose image may be another one.
    image = StoredImage(path=SANDBOX_IMAGE, sha256="", size=0, manifest=replace(manifest, min_memory=0))
    disks = f"{DECLARED}/{workload.name}/disks"
    return Parts(
        workload=workload,
        image=image,
        tender=tender,
        reservation=Reservation(task=workload.name),
        user=0,
        systemd=systemd,
        groups=groups,
        disks=[Disk(disk=each.disk, path=f"{disks}/{each.disk}", identity=(0, 0)) for each in workload.disks],
        log_namespace=log_namespace,
    )


def unit_file(declaration: Declaration, parts: Parts) -> str:
    """Return the service of a declared task as text; raises InvalidRequestError for a property out of bounds."""
    install = [str(line) for line in declaration.install]
    if declaration.workload.idle_stops:  # its socket is enabled in its place
        install = [f"Also={declaration.workload.name}.socket"]
    sections = (*_unit(declaration, parts), "", *_service(declaration, parts), "")
    return "\n".join((*sections, *(["[Install]", *install] if install else []))) + "\n"


def refusal(source: str, sentence: str) -> str:
    """Return the service of a file that was refused: its start fails, and systemd logs the sentence when it reads it.

    An unknown section is ignored with a warning that has its name, which `systemd-analyze verify` prints.
    """
    name = _section(sentence)
    description = " ".join(sentence.split()).rstrip("\\")  # at its end, one continues the line
    lines = (
        f"{MARK}: {source}{_WAS_REFUSED}",
        "[Unit]",
        f"Description={_escaped(description)}",
        f"SourcePath={_escaped(source)}",
        "",
        f"[{name}]",
        "",
        "[Service]",
        "Type=oneshot",
        # A start that fails with the sentence as its last message, whose backslashes `echo` would interpret.
        'ExecStart=/bin/sh -c "printf \'%%s\\\\n\' \\"$SOLO5_REFUSAL\\" >&2; exit 78"',
        "Environment=" + _quoted(f"SOLO5_REFUSAL={sentence}"),
    )
    return "\n".join(lines) + "\n"


def refused_while_running(text: str, sentence: str) -> str:
    """Return the unit file of a running task whose file was refused since: as it was, with the sentence as a section.

    The preparation remains wanted, or PID 1 would release the locks of the disks. No start would succeed: Restart=no.
    """
    return f"{text.partition(_REFUSED_SINCE)[0]}{_REFUSED_SINCE}[{_section(sentence)}]\n[Service]\nRestart=no\n"


def is_refusal(text: str) -> bool:
    """Return whether a unit file of the generator is that of a refused file, which no task runs from."""
    return text.partition("\n")[0].endswith(_WAS_REFUSED)


def _section(sentence: str) -> str:
    return " ".join(sentence.translate(_IN_SECTION).split())


def survives_soft_reboot(declaration: Declaration) -> bool:
    """Return whether [Unit] has SurviveFinalKillSignal=yes."""
    values = [line.value for line in declaration.unit if line.key == "SurviveFinalKillSignal"]
    return bool(values) and BOOLEAN.parse(values[-1]) is True


def awaited(declaration: Declaration, parts: Parts) -> str:
    """Return the drop-in of solo5-prepare@NAME, which waits for what the task's service waits for.

    Of an instance, it is the target before its preparation, since a template cannot have a drop-in of that.
    """
    name = declaration.workload.name
    # The specifiers that differ in that unit are filled in.
    values = {letter: value for letter, value in specifiers(name).items() if letter in "nNpPjJ"}
    lines = [f"{MARK}.", "[Unit]"]
    if is_instance(name):
        lines += [
            f"Description=What Solo5 task {_escaped(name)} waits for",
            "Documentation=man:solo5.unikernel(5)",
            f"Before={prepare_service(name)}",
            "StopWhenUnneeded=yes",
        ]
    else:
        lines += SURVIVING if survives_soft_reboot(declaration) else ()
        values |= {"i": "", "I": "", "f": f"/{values['P']}"}  # that unit is an instance, and the task is none
    lines.append(_mounts(parts))
    for line in declaration.unit:
        if line.key in _WAITED_FOR:
            value = _SPECIFIER.sub(
                lambda match: _escaped(values[match[1]]) if match[1] in values else match[0], line.value
            )
            lines.append(f"{line.key}={value}")
    return "\n".join(lines) + "\n"


def _head(declaration: Declaration) -> tuple[str, ...]:
    return (
        f"{MARK} from {declaration.path}, which is to be changed instead: see solo5.unikernel(5).",
        "[Unit]",
        "Documentation=man:solo5.unikernel(5)",
        f"SourcePath={_escaped(declaration.path)}",
    )


def _unit(declaration: Declaration, parts: Parts) -> Iterator[str]:
    name = declaration.workload.name
    yield from _head(declaration)
    if not any(line.key == "Description" for line in declaration.unit):
        yield f"Description=Solo5 unikernel {_escaped(name)} ({parts.tender.target})"
    # Wants=, not Requires=: a restart of the preparation would restart this unit, and reset its NRestarts=.
    # The preparation starts the outcome target of a task that waits: PID 1 loads a unit less at a boot.
    other = f"{name}.socket" if declaration.workload.idle_stops else declared_outcome_target(name)
    units = [prepare_service(name), other]
    if is_instance(name):
        units.append(awaited_target(name))
    yield f"Wants={' '.join(units)}"
    yield f"After={prepare_service(name)}"
    yield f"AssertPathExists={DECLARED}/{name}/environment"
    yield _mounts(parts)
    if survives_soft_reboot(declaration):
        yield from SURVIVING
    yield from (str(line) for line in declaration.unit)


def _mounts(parts: Parts) -> str:
    disks = (disk.path for disk in parts.workload.disks if disk.path.startswith("/"))
    paths = dict.fromkeys((parts.tender.path, parts.workload.image, *disks))
    return f"RequiresMountsFor={' '.join(map(_quoted, paths))}"


def _service(declaration: Declaration, parts: Parts) -> Iterator[str]:
    name = declaration.workload.name
    own = f"{DECLARED}/{name}"
    yield "[Service]"
    yield f"EnvironmentFile={own}/environment"
    launcher = f"@{parts.tender.launcher} " if parts.tender.launcher else ""
    yield f"ExecStart={launcher}{parts.tender.path} ${DEVICES} -- {SANDBOX_IMAGE} ${ARGUMENTS}"
    # Outside of the sandbox, unlike the tender. What it prints is a line of the console.
    yield "RootDirectoryStartOnly=yes"
    unit = "solo5-update@%N.service"
    yield (
        "ExecReload=+/bin/sh -c "
        f"'case $$(/usr/bin/systemctl is-active {unit}) in activ*) echo An update is under way.; exit 1;; esac; "
        f"exec /usr/bin/systemctl start {unit}'"
    )
    yield "StandardInput=null"
    yield f"StandardError=truncate:{own}/tender/stderr"
    yield f"RestartPreventExitStatus={NOT_RETRIED}"
    yield from map(directive, declared(parts, f"{own}/image", user_of(name)))
    reload = declaration.update.timeout + _RELOAD_MARGIN_S
    if reload > _START_TIMEOUT_S:  # the limit of ExecReload= as well
        yield f"TimeoutStartSec={reload:g}"
    devices = (disk.path for disk in declaration.workload.disks if disk.path.startswith(DEVICE_NODES))
    yield from (f"DeviceAllow={_quoted(path)} rw" for path in devices)  # udev's names have escapes such as \x20
    yield from (str(line) for line in declaration.service)


def socket(declaration: Declaration) -> str:
    """Return the socket unit of a task that waits without a process: a FIFO, and PID 1 starts the task once it is read.

    solo5-networkd writes into it at the first packet. A stop of the task by a job stops it, too.
    """
    name = declaration.workload.name
    lines = (
        *_head(declaration),
        f"Description=First packet for Solo5 unikernel {_escaped(name)}",
        f"PartOf={name}.service",
        "Upholds=solo5-networkd.service",  # it ends by itself when it has nothing to do, perhaps in this moment
        "",
        "[Socket]",
        f"ListenFIFO={WAITING}/{name}",
        "SocketMode=0600",
        "DirectoryMode=0700",
        "RemoveOnStop=yes",
        "FlushPending=yes",
        "",
        "[Install]",
        *(str(line) for line in declaration.install),
    )
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Return text for a setting with specifiers (systemd.unit(5))."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Return one word of systemd.syntax(7), quoted."""
    return '"' + _escaped(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def environment(devices: Iterable[str], arguments: Iterable[str]) -> str:
    """Return the environment file (systemd.exec(5), EnvironmentFile=); options of tenders have no blanks and quotes."""
    words = ('"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in arguments)
    values = {DEVICES: " ".join(devices), ARGUMENTS: " ".join(words)}
    escaped = str.maketrans({char: f"\\{char}" for char in '"\\`$'})  # what has a meaning within double quotes
    return "".join(f'{name}="{text.translate(escaped)}"\n' for name, text in values.items())
