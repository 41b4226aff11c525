"""From a task to its declaration: the inverse of `declaration.parse_declaration`."""

from collections.abc import Iterable, Iterator
from dataclasses import fields

from solo5_systemd.base.errors import InvalidRequestError, SettingsError
from solo5_systemd.base.sanitize import printable, unit_file_syntax
from solo5_systemd.declared.declaration import parse_declaration
from solo5_systemd.declared.specifiers import HostNames
from solo5_systemd.declared.syntax import Source
from solo5_systemd.settings.network import DEFAULT_NETWORK
from solo5_systemd.task.option_table import KEYS, SECTION
from solo5_systemd.task.settings import texts
from solo5_systemd.task.workload import Workload

Line = tuple[str, str]
"""A setting and its value as it is written."""

INSTALL = [("WantedBy", "multi-user.target")]
"""[Install] of what is written, so that `systemctl enable` has an effect."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@+=:,./{}~-")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def write_declaration(workload: Workload, comments: Iterable[str] = ()) -> str:
    """Return the text of a declaration, which `parse_declaration` reads as the same task.

    Raises:
        InvalidRequestError: a declaration cannot describe the task; the sentence has the reason.
    """
    sections = {SECTION: list(_lines(workload)), "Service": workload.properties, "Install": INSTALL}
    for key, value in (line for lines in sections.values() for line in lines):
        if syntax := unit_file_syntax(value):
            raise InvalidRequestError(
                f"task {workload.name} cannot be declared: {key}= has {syntax}, which a file cannot have there: "
                "expected other text."
            )
    parts = ["".join(f"# {printable(each)}\n" for each in comments)]
    parts += [_section(name, lines) for name, lines in sections.items() if lines]
    text = "\n".join(part for part in parts if part)
    _check(workload, text)
    return text


def _section(name: str, lines: Iterable[Line]) -> str:
    return "".join((f"[{name}]\n", *(f"{key}={value}\n" for key, value in lines)))


def _check(workload: Workload, text: str) -> None:
    """Check that a text is read as the task: a value that has no form in a declaration is not written another way."""
    source = Source(path=f"{workload.name}.unikernel", content=text.encode())
    served = [nic.network for nic in workload.nics] or [DEFAULT_NETWORK]
    try:
        found = parse_declaration(workload.name, [source], host=HostNames(), served=served).workload
    except SettingsError as error:
        raise InvalidRequestError(f"task {workload.name} cannot be declared: {error.sentence}", error.hint) from error
    lost = [field.name for field in fields(Workload) if getattr(found, field.name) != getattr(workload, field.name)]
    if lost:
        raise InvalidRequestError(
            f"task {workload.name} cannot be declared, since a declaration cannot describe its {' and '.join(lost)}: "
            "expected what solo5.unikernel(5) has a key for."
        )


def _lines(workload: Workload) -> Iterator[Line]:
    """Yield the keys of [Unikernel]; a default is left out."""
    for name, values in texts(workload):
        setting = KEYS[name]
        if setting.is_list and setting.has_words:
            yield from ((name, each) for each in _words(name, values))
        else:
            yield from ((name, _whole(value)) for value in values)


def _words(name: str, values: Iterable[str]) -> Iterable[str]:
    """Return the values of lines that may have several: fields of the journal one a line, others on one line."""
    words = [*map(quoted_word, values)]
    return words if name in ("Label", "LogField") else [" ".join(words)]


def _whole(text: str) -> str:
    """Return a value that is all of its line."""
    return text.replace("%", "%%")


def quoted_word(text: str, plain: str = "%") -> str:
    """Return one word of a value (systemd.syntax(7)), quoted if it has to be; specifiers are not expanded.

    Args:
        plain: characters that need no quotes, besides those that never do.
    """
    text = _whole(text)
    if text and all(char in _PLAIN or char in plain for char in text):
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char.isprintable() or 0xD800 <= ord(char) <= 0xDFFF else f"\\U{ord(char):08x}"
