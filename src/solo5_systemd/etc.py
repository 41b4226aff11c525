"""Read /etc/solo5/*.toml."""

import tomllib
from pathlib import Path

from solo5_systemd.errors import SettingsError
from solo5_systemd.settings import Settings, parse_settings

ETC = Path("/etc/solo5")


def read_settings(directory: Path = ETC) -> Settings:
    """The settings of this host: all files in the order of their names, a later key winning over an earlier one.

    Raises:
        SettingsError: a file cannot be read, is no TOML, or holds an unknown key or wrong value.
    """
    merged: dict[str, object] = {}
    for file in sorted(directory.glob("*.toml")):
        document = _document(file)
        parse_settings(document, str(file))  # by itself, so that a message can name the file
        merged = _merge(merged, document)
    return parse_settings(merged, str(directory))


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
