"""The syntax of unit files: systemd.syntax(7), and specifiers of systemd.unit(5) in values of [Unikernel].

Where systemd skips a line with a warning, this is an error: a setting is never ignored. Control characters are refused,
since systemd ends a line at NUL and CR too, and lines of a declaration are copied to a unit file.

Specifiers such as `%i` in [Unit], [Service] and [Install] are passed on to systemd. Those of [Unikernel] are expanded
when the declaration is read, so that addresses and disks are those of the instance.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from solo5_systemd.base.errors import SettingsError, unquoted
from solo5_systemd.base.sanitize import bounded

FILE_MAX_BYTES = 1 << 20
"""Size of a declaration or drop-in; systemd has the same limit for a line."""

_BLANKS = " \t"
_SHOWN = 80
_PIECE = re.compile(
    rb"""(?P<blank>[ \t]+) | '(?P<single>(?:[^'\\]|\\.)*)' | "(?P<double>(?:[^"\\]|\\.)*)" """
    rb"""| (?P<plain>(?:[^\ \t'"\\]|\\.)+) | (?P<open>.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(
    rb"\\(?:x(?P<byte>[0-9a-fA-F]{2})|(?P<octal>[0-7]{3})|u(?P<code>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<char>.?))",
    re.DOTALL,
)
_CHARS = b"abfnrtvs\\\"'", b"\a\b\f\n\r\t\v \\\"'"
_ESCAPES = {bytes((char,)): bytes((value,)) for char, value in zip(*_CHARS, strict=True)}
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file as it was read: a declaration, or a drop-in of one.

    Attributes:
        is_public: every user may read it; otherwise, no value is quoted in an error.
    """

    path: str
    content: bytes
    is_public: bool = True


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One line `Key=value`, or several that a backslash continues.

    Attributes:
        value: without blanks around it; of continued lines, joined by a blank each. Empty: it resets the key.
        line: number of the first line, from 1.
    """

    section: str
    key: str
    value: str
    path: str
    line: int
    is_public: bool = True

    def error(self, sentence: str, hint: str = "") -> SettingsError:
        """Return the error of this line."""
        place = f"{self.path}:{self.line}"
        if not self.is_public:
            return unquoted(f"{place}: {self.key}=", sentence)
        return SettingsError(f"{place}: {sentence}", hint)

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def parse_file(source: Source) -> tuple[Assignment, ...]:
    """Return the assignments of a file in their order, without those of `X-` sections and keys, as systemd does.

    Raises:
        SettingsError: it is too large, not UTF-8, or has a line that is none of section, assignment, comment.
    """
    if len(source.content) > FILE_MAX_BYTES:
        raise SettingsError(f"{source.path} is larger than {FILE_MAX_BYTES} bytes: expected a declaration.")
    found = _assignments(_text(source.content, source.path), source)
    return tuple(each for each in found if not each.section.startswith("X-") and not each.key.startswith("X-"))


def _text(content: bytes, path: str) -> str:
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SettingsError(f"{path}:{line}: the line is not UTF-8: expected text.") from error
    if control := _CONTROL.search(text):
        line = text[: control.start()].count("\n") + 1
        raise SettingsError(
            f"{path}:{line}: the line has the control character U+{ord(control[0]):04X}: expected text."
        )
    return text


def _assignments(text: str, source: Source) -> Iterator[Assignment]:
    """Yield the assignments; errors quote no text, since the file may be no declaration and have secrets."""
    section, path = "", source.path
    for number, line in _logical_lines(text, path):
        if line.startswith("["):
            section = line[1:-1]
            if not line.endswith("]") or not section or set(section) & set("[]"):
                raise SettingsError(f"{path}:{number}: the line is not a section: expected one such as [Unikernel].")
            continue
        key, equals, value = line.partition("=")
        key = key.rstrip(_BLANKS)
        if not equals or not key:
            raise SettingsError(f"{path}:{number}: the line is not an assignment: expected Key=value.")
        if not section:
            raise SettingsError(f"{path}:{number}: the line is before any section: expected it below [Unikernel].")
        value = value.strip(_BLANKS)
        if _is_continued(value):  # copied to a unit file, it would continue in the line that follows there
            raise SettingsError(
                f"{path}:{number}: the value of {bounded(key, _SHOWN)}= ends in a backslash: expected two of them."
            )
        yield Assignment(section=section, key=key, value=value, path=path, line=number, is_public=source.is_public)


def _logical_lines(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield the number of each line and its text, continued lines as one; comments may stand between these."""
    begin, parts = 0, list[str]()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(_BLANKS)
        if line.startswith(("#", ";")) or (not line and not parts):  # an empty line ends a continued one
            continue
        begin = begin if parts else number
        if _is_continued(raw):
            parts.append(raw[:-1])
        else:
            yield begin, " ".join((*parts, raw)).strip(_BLANKS)
            parts = []
    if parts:
        raise SettingsError(
            f"{path}:{begin}: the line ends in a backslash at the end of the file: expected another line."
        )


def _is_continued(line: str) -> bool:
    """Return whether a line ends in a backslash that no other one precedes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def split_words(text: str) -> tuple[str, ...]:
    r"""Split a value at blanks; quotes and escapes as in systemd.syntax(7).

    `"a b"` and `'a b'` are one word each, also as a part of one: `--name="a b"`. Escapes: `\n`, `\t`, `\s` (a blank),
    `\\`, `\"`, `\'`, `\x41`, `\101`, `\u00e9` and their like, with and without quotes.

    Raises:
        ValueError: a quote without its end, or an unknown escape; the message is the end of a sentence.
    """
    words: list[bytes] = []
    word: bytes | None = None
    for piece in _PIECE.finditer(text.encode() + b" "):
        if piece["blank"]:
            words += [] if word is None else [word]  # quotes with nothing in them are a word
            word = None
        elif piece["open"]:
            raise ValueError(f"has the quote {piece[0].decode()} without its end: expected a second one")
        else:
            found = piece["plain"] or piece["single"] or piece["double"] or b""
            word = (word or b"") + _ESCAPE.sub(_unescape, found)
    try:
        return tuple(each.decode() for each in words)
    except UnicodeDecodeError as error:
        raise ValueError("has an escape that is not UTF-8: expected text") from error


def _unescape(escape: re.Match[bytes]) -> bytes:
    if escape["char"] in _ESCAPES:
        return _ESCAPES[escape["char"]]
    byte = int(escape["byte"] or b"0", 16) or int(escape["octal"] or b"0", 8)
    if 0 < byte <= 0xFF:  # no argument can have a NUL, and \777 is no byte
        return bytes((byte,))
    code = int(escape["code"] or escape["long"] or b"0", 16)
    if 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:  # a surrogate has no form in UTF-8
        return chr(code).encode()
    shown = escape[0].decode(errors="replace").rstrip(_BLANKS)
    raise ValueError(f"has the unknown escape {shown}: expected one such as \\n, \\s or \\x41, or \\\\")


_SPECIFIER = re.compile("%(.?)", re.DOTALL)

OF_HOST = "Hlmbva"
"""Specifiers of the host: its name, the same without a domain, the IDs of machine and boot, kernel and architecture."""


def specifiers(name: str, host: Mapping[str, str] = MappingProxyType({})) -> Mapping[str, str]:
    """Return the value of each specifier, by its letter; empty: it has none here.

    Args:
        host: the values of those in `OF_HOST` that are known.
    """
    prefix, _, instance = name.partition("@")
    last = prefix.rpartition("-")[2]
    return {
        "%": "%",
        "n": f"{name}.service",
        "N": name,
        "p": prefix,
        "P": _unescaped(prefix),
        "j": last,
        "J": _unescaped(last),
        "i": instance,
        "I": _unescaped(instance),
        "f": f"/{_unescaped(instance or prefix)}",
        **{letter: host.get(letter, "") for letter in OF_HOST},
        "C": "/var/cache",
        "E": "/etc",
        "L": "/var/log",
        "S": "/var/lib",
        "t": "/run",
        "T": "/tmp",  # noqa: S108 - as systemd's
        "V": "/var/tmp",  # noqa: S108 - as systemd's
    }


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its specifiers replaced.

    Raises:
        ValueError: an unknown specifier, or one without a value; the message is the end of a sentence.
    """

    def replace(match: re.Match[str]) -> str:
        if match[1] not in values or not match[1]:
            known = " ".join(f"%{letter}" for letter in values)
            raise ValueError(f"has the unknown specifier {match[0]!r}: expected one of {known}; %% is a percent sign")
        if not values[match[1]]:
            of = "an instance of a template" if match[1] in "iI" else "a host with that fact"
            raise ValueError(f"has the specifier {match[0]}, which is empty here: expected {of}")
        return values[match[1]]

    return _SPECIFIER.sub(replace, text)


def _unescaped(text: str) -> str:
    """Return a name with systemd's escape of a slash undone; names of declarations have no other escapes."""
    return text.replace("-", "/")
