"""Options that have a few words to choose from."""

from enum import StrEnum
from typing import TypeVar

from solo5_systemd.decode import Fields

E = TypeVar("E", bound=StrEnum)


class Logging(StrEnum):
    """Where a console goes besides the journal: to Nomad's log files, or nowhere."""

    NOMAD = "nomad"
    JOURNALD = "journald"


def choice(fields: Fields, key: str, words: type[E]) -> E | None:
    """One of the words; None where none is given.

    Raises:
        Solo5Error: another word.
    """
    if not fields.has(key):
        return None
    return _word(fields, key, fields.text(key), words, f'{key} = "{next(iter(words))}"')


def choices(fields: Fields, key: str, words: type[E]) -> tuple[E, ...]:
    """Return some of the words; none where none is given.

    Raises:
        Solo5Error: another word.
    """
    such_as = f'{key} = ["{next(iter(words))}"]'
    return tuple(_word(fields, key, text, words, such_as) for text in fields.texts(key, ()))


def _word(fields: Fields, key: str, text: str, words: type[E], such_as: str) -> E:
    try:
        return words(text)
    except ValueError as error:
        known = ", ".join(f'"{word}"' for word in words)
        raise fields.wrong(key, text, f"one of {known}, such as {such_as}") from error
