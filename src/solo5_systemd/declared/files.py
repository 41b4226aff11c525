"""Read declarations: /etc/solo5/NAME.unikernel, and its drop-ins.

    unikernel.d/*.conf           of all
    web-.unikernel.d/*.conf      of those whose names begin so
    web@.unikernel.d/*.conf      of a template and its instances
    web@1.unikernel.d/*.conf     of one

The files are root's configuration, read by `base.own_files`. A symbolic link of root's is followed, as one of
configuration management.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.errors import InvalidRequestError, NotFoundError, SettingsError, host_errors
from solo5_systemd.base.names import task_name
from solo5_systemd.base.own_files import check_own, is_mask, list_own, read_own
from solo5_systemd.base.paths import boot_id
from solo5_systemd.declared.declaration import SUFFIX
from solo5_systemd.declared.syntax import FILE_MAX_BYTES, Source
from solo5_systemd.host.drop_ins import names_of_drop_ins
from solo5_systemd.settings.files import ETC


def declarations(directory: Path = ETC) -> tuple[str, ...]:
    """Return the names of all declarations in order: `web`, `web@` of a template, `web@1` of an instance's own file.

    A malformed name is among them, for an error; a masked one (a link to /dev/null) is not. Raises SettingsError.
    """
    found = (path for path in _listed(directory) if path.name.endswith(SUFFIX))
    return tuple(path.name.removesuffix(SUFFIX) for path in found if not is_mask(path))


def own_instances(template: str, directory: Path = ETC) -> frozenset[str]:
    """Return the instances that are not as their template: by a file of their own, masked ones too, or drop-ins."""
    found = [path.name.removesuffix(".d") for path in _listed(directory) if path.name.startswith(template)]
    return frozenset(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)) - {template}


def _listed(directory: Path) -> Sequence[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:  # the first declaration makes it
        return ()
    except OSError as error:
        raise SettingsError(f"{directory} cannot be read: {error.strerror}.") from error


def check_name(name: str) -> None:
    """Check the name of a declaration: of a task, or of a template; raises InvalidRequestError if it is malformed."""
    task_name(f"{name}1" if name.endswith("@") else name)


def read_sources(name: str, directory: Path = ETC) -> tuple[Source, ...]:
    """Return the files of a declaration: its own or its template's, then all drop-ins sorted by their names.

    A drop-in for fewer declarations has precedence over one of the same name for more, as of units (systemd.unit(5));
    an empty one, or a link to /dev/null, masks it.

    Raises:
        InvalidRequestError: the name is not that of a declaration.
        NotFoundError: there is no such file.
        SettingsError: a file cannot be read, is not a file, or other users may change it or which file it is.
    """
    check_name(name)
    prefix, _, instance = name.partition("@")
    names = (name, f"{prefix}@") if instance else (name,)
    # A link that leads nowhere is an error, not an absent file.
    own = next((path for path in (directory / f"{each}{SUFFIX}" for each in names) if os.path.lexists(path)), None)
    if own is not None and is_mask(own):
        raise NotFoundError(f"declaration {name!r} is masked: {own} is a link to /dev/null.", f"Remove it: rm {own}")
    if own is None:
        raise NotFoundError(
            f"there is no declaration {name!r}: expected the file {directory}/{names[-1]}{SUFFIX}.",
            "List them: ls /etc/solo5",
        )
    directories = (directory / f"{each}.d" for each in names_of_drop_ins(f"{name}{SUFFIX}"))
    listed = {file: each / file for each in directories for file in list_own(each)}
    drop_ins = (path for file, path in sorted(listed.items()) if file.endswith(".conf") and file[0] != ".")
    return tuple(_source(path) for path in (own, *(path for path in drop_ins if not is_mask(path))))


def _source(path: Path) -> Source:
    content, is_public = read_own(path, FILE_MAX_BYTES)
    return Source(path=str(path), content=content, is_public=is_public)


def write_source(name: str, text: str, directory: Path = ETC, *, replace: bool = False) -> Path:
    """Write a declaration atomically, and return its path.

    Raises:
        InvalidRequestError: the name is not that of a declaration, or, without `replace`, there is one of this name.
        SettingsError: users other than root may change the directory, or which one it is.
        HostError: it cannot be written.
    """
    task_name(name)
    path = directory / f"{name}{SUFFIX}"
    with host_errors(f"{path} cannot be written"):
        directory.mkdir(exist_ok=True)
        check_own(directory)
        if not replace and os.path.lexists(path):  # a link that leads nowhere is the operator's as well
            raise InvalidRequestError(f"{path} exists: expected a new name.", "Add --replace to replace it.")
        replace_file(path, text, mode=0o644, several_writers=True, durable=True)
    return path


def host_names() -> Mapping[str, str]:
    """Return the values of the specifiers of the host (`syntax.OF_HOST`); the machine ID may be empty."""
    host, machine = os.uname(), ""
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    return {
        "H": host.nodename,
        "l": host.nodename.partition(".")[0],
        "m": machine,
        "b": boot_id().replace("-", ""),
        "v": host.release,
        "a": host.machine.replace("_", "-").replace("aarch64", "arm64"),
    }
