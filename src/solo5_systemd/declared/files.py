"""Read declarations: /etc/solo5/NAME.unikernel, and its drop-ins; and find other units that have the name of one.

    unikernel.d/*.conf           of all
    web-.unikernel.d/*.conf      of those whose names begin so
    web@.unikernel.d/*.conf      of a template and its instances
    web@1.unikernel.d/*.conf     of one

The files are root's configuration, read by `base.own_files`. A symbolic link of root's is followed, as one of
configuration management.

Units of other generators are found by what they are made of: PID 1 executes all generators at the same time, and
empties their directories before. A unit there would be hidden by ours, which are in a directory of higher precedence.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.declared_units import is_ours
from solo5_systemd.base.errors import InvalidRequestError, NotFoundError, SettingsError, TakenError, host_errors
from solo5_systemd.base.names import task_name
from solo5_systemd.base.own_files import check_own, is_mask, list_own, read_own
from solo5_systemd.declared.declaration import SUFFIX
from solo5_systemd.declared.syntax import FILE_MAX_BYTES, HostNames, Source
from solo5_systemd.host.drop_ins import UNITS, merged_drop_ins, names_of_drop_ins
from solo5_systemd.settings.files import ETC


def declarations(directory: Path = ETC) -> tuple[str, ...]:
    """Return the names of all declarations in order: `web`, `web@` of a template, `web@1` of an instance's own file.

    A file whose name is not that of a declaration is among them, for an error; one that is a link to /dev/null is
    masked, and left out.

    Raises:
        SettingsError: the directory cannot be read.
    """
    found = (path for path in _listed(directory) if path.name.endswith(SUFFIX))
    return tuple(path.name.removesuffix(SUFFIX) for path in found if not is_mask(path))


def own_instances(template: str, directory: Path = ETC) -> frozenset[str]:
    """Return the instances that are not as their template: by a file of their own, also a masked one, or by drop-ins.

    Raises:
        SettingsError: the directory cannot be read.
    """
    found = [path.name.removesuffix(".d") for path in _listed(directory) if path.name.startswith(template)]
    return frozenset(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)) - {template}


def _listed(directory: Path) -> Sequence[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SettingsError(f"{directory} cannot be read: {error.strerror}.") from error


def check_name(name: str) -> None:
    """Check the name of a declaration: of a task, or of a template.

    Raises:
        InvalidRequestError: it is malformed.
    """
    task_name(f"{name}1" if name.endswith("@") else name)


def read_sources(name: str, directory: Path = ETC) -> tuple[Source, ...]:
    """Return the files of a declaration: its own or its template's, then all drop-ins sorted by their names.

    Of a template: its own and its drop-ins.

    A drop-in for fewer declarations has precedence over one of the same name for more, as of units (systemd.unit(5));
    an empty one, or a link to /dev/null, masks it.

    Args:
        name: `web`, `web@1` for an instance, `web@` for a template.

    Raises:
        InvalidRequestError: the name is not that of a declaration.
        NotFoundError: there is no such file.
        SettingsError: a file cannot be read, is not a file, or other users may change it or which file it is.
    """
    check_name(name)
    prefix, _, instance = name.partition("@")
    names = (name, f"{prefix}@") if instance else (name,)
    own = next((path for path in (directory / f"{each}{SUFFIX}" for each in names) if _exists(path)), None)
    if own is not None and is_mask(own):
        raise NotFoundError(f"declaration {name!r} is masked: {own} is a link to /dev/null.", f"Remove it: rm {own}")
    if own is None:
        raise NotFoundError(
            f"there is no declaration {name!r}: expected the file {directory}/{names[-1]}{SUFFIX}.",
            "List them: ls /etc/solo5",
        )
    directories = (directory / f"{each}.d" for each in names_of_drop_ins(f"{name}{SUFFIX}"))
    drop_ins = {path.name: path for each in directories for path in _drop_ins(each)}
    files = (own, *(path for _, path in sorted(drop_ins.items()) if not is_mask(path)))
    return tuple(_source(path) for path in files)


def _source(path: Path) -> Source:
    found = read_own(path, FILE_MAX_BYTES)
    return Source(path=str(path), content=found.content, is_public=found.is_public)


def write_source(name: str, text: str, directory: Path = ETC, *, replace: bool = False) -> Path:
    """Write a declaration atomically, and return its path.

    Args:
        name: as of `read_sources`.
        directory: of the declarations; it is created if there is none.
        replace: replace an existing file; otherwise it is an error.

    Raises:
        InvalidRequestError: the name is not that of a declaration, or there is one of this name.
        SettingsError: users other than root may change the directory, or which one it is.
        HostError: it cannot be written.
    """
    task_name(name)
    path = directory / f"{name}{SUFFIX}"
    with host_errors(f"{path} cannot be written"):
        directory.mkdir(exist_ok=True)
        check_own(directory)
        if not replace and _exists(path):
            raise InvalidRequestError(f"{path} exists: expected a new name.", "Add --replace to replace it.")
        replace_file(path, text, mode=0o644, several_writers=True, durable=True)
    return path


def _drop_ins(directory: Path) -> Iterator[Path]:
    return (directory / name for name in list_own(directory) if name.endswith(".conf") and name[0] != ".")


def _exists(path: Path) -> bool:
    return os.path.lexists(path)  # a link that leads nowhere is an error, not an absent file


def host_names() -> HostNames:
    """Return the facts of the host that specifiers name; those that cannot be read are empty."""
    host = os.uname()
    return HostNames(
        hostname=host.nodename,
        machine_id=_line("/etc/machine-id"),
        boot_id=_line("/proc/sys/kernel/random/boot_id").replace("-", ""),
        kernel=host.release,
        architecture=host.machine.replace("_", "-").replace("aarch64", "arm64"),
    )


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


EDITED = UNITS[:2]
"""Where an administrator's are."""

QUADLETS = ("/etc/containers/systemd", "/run/containers/systemd", "/usr/share/containers/systemd")
"""Where the generator of podman finds its files (podman-systemd.unit(5))."""

_QUADLET = {
    ".container": "",
    ".kube": "",
    ".pod": "-pod",
    ".volume": "-volume",
    ".network": "-network",
    ".image": "-image",
    ".build": "-build",
}
"""What a file of podman adds to its name for that of its service, without ServiceName=."""

INIT_SCRIPTS = "/etc/init.d"
"""Of systemd-sysv-generator."""


def of_generators(quadlets: Sequence[str] = QUADLETS, init_scripts: str = INIT_SCRIPTS) -> Mapping[str, Path]:
    """Return the services that other generators make, with the file that each is made of."""
    found = {f"{path.name.removesuffix('.sh')}.service": path for path in _scripts(Path(init_scripts))}
    return found | {f"{path.stem}{_QUADLET[path.suffix]}.service": path for path in _quadlets(quadlets)}


def _scripts(directory: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from (path for path in directory.iterdir() if os.access(path, os.X_OK))


def _quadlets(directories: Sequence[str]) -> Iterator[Path]:
    for top in directories:
        for parent, below, files in os.walk(top):
            if parent == top and "users" in below:
                below.remove("users")
            yield from (Path(parent, file) for file in files if Path(file).suffix in _QUADLET)


def unit_files(directories: Sequence[str] = UNITS) -> Mapping[str, frozenset[str]]:
    """Return the names of the files in each directory of units that there is: for many calls of `check_free`."""
    found = {}
    for directory in directories:
        with suppress(OSError):
            found[directory] = frozenset(os.listdir(directory))  # noqa: PTH208 - for strings
    return found


def check_free(name: str, generated: Mapping[str, Path], units: Mapping[str, frozenset[str]]) -> None:
    """Check that no other unit has the name of a declaration; a mask and an edited copy of ours have precedence.

    A socket unit of this name would start the task.

    Args:
        name: of the declaration; of an instance, the template may be another program's.
        generated: as of `of_generators`.
        units: as of `unit_files`.

    Raises:
        TakenError: another unit has the name.
    """
    if name.startswith("solo5-"):
        raise TakenError(f"{name} begins with solo5-, as units of solo5-systemd do: expected another name.")
    prefix, at, _ = name.partition("@")
    for unit in dict.fromkeys((f"{name}.service", f"{name}.socket", f"{prefix}{at}.service")):
        files = (Path(directory, unit) for directory, names in units.items() if unit in names)
        others = (file for file in files if not _is_masked(file) and not is_ours(file))
        other = next(others, generated.get(unit))
        if other is not None:
            has = "is" if other.name == unit else "is made of"
            raise TakenError(f"unit {unit} {has} {other} already: expected a name that no other unit has.")


def check_copy(name: str, directories: Sequence[str] = EDITED) -> None:
    """Check that an administrator has no copy of a unit of ours, which `systemctl edit --full` makes.

    PID 1 has the copy, and the starts of the task have the declaration: a change of it takes effect in part.

    Raises:
        TakenError: there is a copy.
    """
    unit = f"{name}.service"
    for path in (Path(directory, unit) for directory in directories):
        if is_ours(path):
            raise TakenError(
                f"{path} is a copy of the unit file that is made of the declaration, and hides it: expected changes in "
                f"the declaration, or in a drop-in (systemctl edit {unit}).",
                f"Move your changes there; then: rm {path}; systemctl daemon-reload",
            )


def check_effect(name: str, directories: Sequence[str] = UNITS) -> None:
    """Check that no drop-in for a declaration is where those of its unit are, and would have no effect.

    Raises:
        TakenError: there is one.
    """
    place = f"{ETC}/{name}{SUFFIX}.d"
    beside = [path for _, path in merged_drop_ins(f"{name}{SUFFIX}", directories).values()]
    of_unit = [path for _, path in merged_drop_ins(f"{name}.service", directories).values() if _has_section(path)]
    for path in (*beside, *of_unit):
        what = "it" if path in beside else "section [Unikernel]"
        raise TakenError(
            f"{path} has no effect on declaration {name}: expected {what} in {place}.",
            f"mkdir -p {place}, and move it there; then: systemctl daemon-reload",
        )


def _has_section(path: Path) -> bool:
    try:
        return any(line.strip() == "[Unikernel]" for line in path.read_text(errors="replace").splitlines())
    except OSError:
        return False


def _is_masked(path: Path) -> bool:
    return os.path.realpath(path) == "/dev/null"
