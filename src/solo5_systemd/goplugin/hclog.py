"""A log line as HashiCorp's hclog writes it in JSON, and as go-plugin's host reads it (client.go, log_entry.go).

The host panics at an @-key that is no string, takes a time of any other layout for plain text, and cuts lines at
64 KiB. It reads numbers as floats and would print a million as 1e+06, so values travel as text.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

LONGEST = 60_000
"""Bytes, within the host's 64 KiB."""


def line(*, level: str, message: str, time: float, fields: Mapping[str, object]) -> bytes:
    """One line, newline included.

    Args:
        level: trace, debug, info, warn or error.
        message: one sentence; should it have several lines, they are joined.
        time: seconds since the epoch.
        fields: the host shows each as key=value; a value of several lines, below the message.
    """
    head = {
        "@level": level,
        "@message": " | ".join(message.splitlines()),
        "@timestamp": datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    entry = head | {key.lstrip("@") or "at": _plain(value) for key, value in fields.items()}
    while len(encoded := _encoded(entry)) > LONGEST:
        _shorten(entry)
    return encoded


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encoded(entry: Mapping[str, str]) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace") + b"\n"  # a file name may hold what is not Unicode


def _shorten(entry: dict[str, str]) -> None:
    """Halve the longest value: how it begins and how it ends says most."""
    key = max(entry, key=lambda key: len(entry[key]))
    value = entry.pop(key)
    if quarter := len(value) // 4:
        entry[key] = f"{value[:quarter]} … {value[-quarter:]}"
