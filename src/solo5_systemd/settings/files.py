"""Read the settings in /etc/solo5/*.toml and /run/solo5/settings/*.toml, and write the latter."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.errors import SettingsError, host_errors, unquoted
from solo5_systemd.base.own_files import list_own, read_own
from solo5_systemd.settings.solo5_toml import Settings, check_reach, parse_settings

ETC = Path("/etc/solo5")

RUN = Path("/run/solo5/settings")
"""Networks that the Nomad driver's configuration defines. As with systemd's files, /etc overrides /run, key by key."""

_FILE_MAX_BYTES = 1 << 20
"""Of a file; networks for all of a Nomad server's namespaces have some kilobytes."""


def read_settings(directory: Path = ETC, run: Path = RUN) -> Settings:
    """Return the settings of this host: all files sorted by name, with later keys overriding earlier ones.

    Args:
        run: of files for this boot, read first.

    Raises:
        SettingsError: a file cannot be read, is not TOML, or has an unknown key or an invalid value; or other users may
            change it, or which file it is.
    """
    files = [place / name for place in (run, directory) for name in sorted(list_own(place)) if name.endswith(".toml")]
    read = {file: read_own(file, _FILE_MAX_BYTES) for file in files}
    documents = {file: _document(file, content) for file, (content, _) in read.items()}
    nothing: dict[str, object] = {}
    merged = reduce(_merge, documents.values(), nothing)
    try:
        settings = parse_settings(merged)
        check_reach(settings)
    except SettingsError as error:
        for file, document in documents.items():  # name the file if it is invalid by itself
            try:
                parse_settings(document)
            except SettingsError as own:
                raise _located(file, own, is_public=read[file][1]) from error
        raise _located(directory, error, is_public=all(is_public for _, is_public in read.values())) from error
    return settings


def _located(place: Path, error: SettingsError, *, is_public: bool) -> SettingsError:
    """Return an error with the place before it, and without values if not every user may read them."""
    if is_public:
        return SettingsError(f"{place}: {error.sentence}", error.hint)
    return unquoted(f"{place}: {error.sentence.split()[0].removesuffix(':')}", error.sentence)


_TIMES_SETTLE_S = 2.0
"""File times do not reveal a change that is younger: they have the resolution of the kernel's clock tick or of the file
system, a second on ext4 with small inodes."""

_Stamp = tuple[str, int, int, int, int]


class CachedSettings:
    """The settings of this host for a process that reads them often: parsed again when a file has changed."""

    def __init__(self) -> None:
        self._stamps: frozenset[_Stamp] = frozenset()
        self._settings: Settings | None = None

    def __call__(self) -> Settings:
        """Return the settings; raises SettingsError as `read_settings` does."""
        now = time.time()
        stamps = frozenset((*_stamps(RUN), *_stamps(ETC)))
        if self._settings is None or stamps != self._stamps:
            self._settings = None  # unknown if the files cannot be read
            settings = read_settings(ETC, RUN)
            if any(now - max(stamp[-2:]) / 1e9 < _TIMES_SETTLE_S for stamp in stamps):
                return settings
            self._settings, self._stamps = settings, stamps
        return self._settings


def _stamps(directory: Path) -> Iterator[_Stamp]:
    """Yield path, inode, size, mtime and ctime of each file of settings, before it is read.

    A file or directory that cannot be accessed ends the list: reading it fails, too.
    """
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(".toml"):
                status = entry.stat()
                yield entry.path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def write_networks(file: Path, networks: Mapping[str, Mapping[str, object]]) -> None:
    """Write definitions of networks that last until the next boot; without any, remove the file.

    Args:
        file: below `RUN`, with one writer.
        networks: tables as in /etc/solo5/*.toml, by name.

    Raises:
        HostError: /run cannot be written.
    """
    text = "".join(
        f"[network.{json.dumps(name)}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in networks.items()
    )
    with host_errors(f"{file} cannot be written"):
        if not text:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(file, text, mode=0o644)


def _document(file: Path, content: bytes) -> dict[str, object]:
    if all(not line or line.startswith(b"#") for line in content.splitlines()):
        return {}  # as the package installs it
    import tomllib  # imported here for startup time

    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file} cannot be read as TOML: it is not UTF-8.") from error
    except tomllib.TOMLDecodeError as error:  # has line and column, and names no text but keys
        raise SettingsError(f"{file} cannot be read as TOML: {error}.") from error


def _merge(base: dict[str, object], over: dict[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
