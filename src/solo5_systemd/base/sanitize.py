"""Text from jobs, images and guests: escaped for terminals and logs, checked for unit files."""

import re

MAX_NAME = 256
"""Most characters of a job's name in output."""

MAX_QUOTE = 300
"""Most characters of a path, or of another text of any length, in a sentence."""


def printable(text: str) -> str:
    r"""Return text with escapes such as `\x1b` for characters that are not printable.

    Args:
        text: decoded with surrogateescape: invalid UTF-8 is in it as lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def bounded(text: str, most: int) -> str:
    """Return printable text of at most `most` characters, with `…` for the omitted end."""
    plain = printable(text[: most + 1])
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def name_for_unit(text: str, most: int = MAX_NAME) -> str:
    r"""Return a name that a unit file reproduces unchanged: printable, bounded, stripped of blanks.

    A backslash at its end, which would continue the line, becomes `\x5c`.
    """
    plain = bounded(text.strip(), most).strip()
    return f"{plain[:-1]}{_escape(plain[-1])}" if plain.endswith("\\") else plain


def unit_file_syntax(text: str) -> str:
    """Return a description of the first unit file syntax in a text; empty without any.

    Control characters (systemd ends a line at NUL, LF and CR), line and paragraph separators, invalid UTF-8 (systemd
    skips such a line), and a backslash at the end (it continues the line).
    """
    found = re.search(_UNIT_FILE_SYNTAX, text)
    if found:
        return f"the character {_escape(found[0])}"
    return "a backslash at its end" if text.endswith("\\") else ""


def is_plain_path(path: str) -> bool:
    """Return whether BindPaths= in a unit file parses an unquoted path unchanged."""
    return re.fullmatch(_PLAIN_PATH, path) is not None


# Compiled at their first use, for startup time.
_PLAIN_PATH = r"[^\s:\"'\\]*"
_UNIT_FILE_SYNTAX = "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of invalid UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
