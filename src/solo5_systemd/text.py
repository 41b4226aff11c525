"""Text of a job, an image or a guest on its way to a reader: printable for people, free of structure for PID 1."""

import re

NAME = 256
"""Characters of a name that a job chose, wherever it is shown."""

QUOTE = 300
"""Characters of a guest's or tender's line that a sentence quotes."""


def visible(text: str) -> str:
    r"""Return text in which every character is printable: any other becomes an escape such as `\x1b`.

    Args:
        text: bytes that were no UTF-8 are lone surrogates in it, as surrogateescape decodes them.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def bounded(text: str, most: int) -> str:
    """Return printable text of at most `most` characters; `…` stands for what is left out."""
    plain = visible(text[: most + 1])
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def name_for_unit(text: str, most: int = NAME) -> str:
    r"""Return a name as one line of a unit file holds it and gives it back: printable, bounded, stripped of blanks.

    A backslash at the end, which would join the next line, becomes `\x5c`.
    """
    plain = bounded(text.strip(), most).strip()
    return f"{plain[:-1]}{_escape(plain[-1])}" if plain.endswith("\\") else plain


def structure(text: str) -> str:
    """Return what in a text a unit file may read as structure, in words; empty where nothing does.

    That is a control character (systemd ends a line at NUL, LF and CR), a line or paragraph separator, bytes that are
    no UTF-8 (systemd leaves such a line out), a backslash at the end (it joins the next line).
    """
    found = _STRUCTURE.search(text)
    if found:
        return f"the character {_escape(found[0])}"
    return "a backslash at its end" if text.endswith("\\") else ""


def bare(path: str) -> bool:
    """Return whether BindPaths= in a unit file reads a path as itself, where it is written without quotes."""
    return _BARE.fullmatch(path) is not None


_BARE = re.compile(r"[^\s:\"'\\]*")
_STRUCTURE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
