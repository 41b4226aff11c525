"""Read /etc/solo5/*.toml."""

import tomllib
from functools import reduce
from pathlib import Path

from solo5_systemd.errors import SettingsError
from solo5_systemd.settings import Settings, parse_settings

ETC = Path("/etc/solo5")


def read_settings(directory: Path = ETC) -> Settings:
    """The settings of this host: all files in the order of their names, a later key winning over an earlier one.

    Raises:
        SettingsError: a file cannot be read, is no TOML, or holds an unknown key or wrong value.
    """
    documents = {file: _document(file) for file in sorted(directory.glob("*.toml"))}
    nothing: dict[str, object] = {}
    merged = reduce(_merge, documents.values(), nothing)
    try:
        return parse_settings(merged, str(directory))
    except SettingsError:
        for file, document in documents.items():  # if one of them is wrong by itself, it is the one to name
            parse_settings(document, str(file))
        raise


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
