"""Read /etc/solo5/*.toml, and what another service of this boot has put beside it below /run."""

import json
import tomllib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from solo5_systemd.errors import HostError, SettingsError
from solo5_systemd.settings import Settings, check_reach, parse_settings

ETC = Path("/etc/solo5")

RUN = Path("/run/solo5/settings")
"""What the Nomad driver's configuration defines; as with systemd's own files, /etc wins over it, key by key."""


def read_settings(directory: Path = ETC, run: Path = RUN) -> Settings:
    """The settings of this host: all files in the order of their names, a later key winning over an earlier one.

    Args:
        directory: the operator's.
        run: what holds until the next boot, read before it.

    Raises:
        SettingsError: a file cannot be read, is no TOML, or holds an unknown key or wrong value.
    """
    files = (file for place in (run, directory) for file in sorted(place.glob("*.toml")))
    documents = {file: _document(file) for file in files}
    nothing: dict[str, object] = {}
    merged = reduce(_merge, documents.values(), nothing)
    try:
        settings = parse_settings(merged, str(directory))
    except SettingsError:
        for file, document in documents.items():  # if one of them is wrong by itself, it is the one to name
            parse_settings(document, str(file))
        raise
    check_reach(settings)
    return settings


def write_networks(file: Path, networks: Mapping[str, Mapping[str, object]]) -> None:
    """Define networks until the next boot, or take the definition back where there are none.

    Args:
        file: one below `RUN`, of the writer alone.
        networks: tables as in /etc/solo5/*.toml, by name.

    Raises:
        HostError: /run cannot be written.
    """
    text = "".join(
        f"[network.{json.dumps(name)}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in networks.items()
    )
    try:
        if not text:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(file)
    except OSError as error:
        raise HostError(f"{file} cannot be written: {error.strerror}.") from error


def _document(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{file} cannot be read as TOML: {error}.") from error


def _merge(base: dict[str, object], over: dict[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
