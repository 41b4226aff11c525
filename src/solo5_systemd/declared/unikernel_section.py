"""The values of [Unikernel] by key: last file, resets, words, specifiers; and the parsers, those of `solo5ctl run`."""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError, SettingsError, Solo5Error
from solo5_systemd.declared.specifiers import Specified, expand
from solo5_systemd.declared.syntax import Assignment, split_words
from solo5_systemd.declared.unit_keys import LISTS
from solo5_systemd.task.option_table import SETTINGS
from solo5_systemd.task.settings import Parse, Values

T = TypeVar("T")


def effective(assignments: Iterable[Assignment]) -> Mapping[str, tuple[Assignment, ...]]:
    """Return the assignments of one section that count, by key.

    An empty assignment removes those before it. Of a setting that is no list, the last file's counts.

    Raises:
        SettingsError: a setting that is no list is twice in one file.
    """
    found: dict[str, list[Assignment]] = {}
    for each in assignments:
        if not each.value:
            found.pop(each.key, None)
            continue
        own = found.setdefault(each.key, [])
        if each.key not in LISTS:
            if own and own[-1].path == each.path:
                raise each.error(
                    f"{each.key}= is given twice, before in line {own[-1].line}: expected it once in a file."
                )
            own.clear()
        own.append(each)
    return {key: tuple(own) for key, own in found.items()}


class Declared(Values):
    """The values of [Unikernel].

    Args:
        assignments: the result of `effective`.
    """

    def __init__(self, assignments: Mapping[str, tuple[Assignment, ...]], specified: Specified) -> None:
        self._assignments = assignments
        self._specified = specified

    def given(self, name: str) -> bool:
        """Return whether a key is set."""
        return name in self._assignments

    def checked(self, name: str, check: Callable[[], T]) -> T:
        """Return the result of a function of the values of a key; its error is that of the key's last line.

        Raises:
            SettingsError: the function has raised an error.
        """
        lines = self._assignments.get(name, ())
        return located(lines[-1], check) if lines else check()

    def error(self, name: str, sentence: str, hint: str = "") -> SettingsError:
        """Return the error of the last line of a key, which is set."""
        return self._assignments[name][-1].error(sentence, hint)

    def shown(self, name: str) -> str:
        """Return the key as it is written."""
        return f"{name}="

    def path(self, text: str, what: str) -> str:
        """Return an absolute path without `.`, `..` and doubled slashes; lexical, as for `solo5ctl run`.

        Raises:
            InvalidRequestError: it is relative.
        """
        if not text.startswith("/"):
            raise InvalidRequestError(
                f"{what} {text!r} is a relative path: expected an absolute one, such as /srv/web.hvt."
            )
        return posixpath.normpath(f"/{text.lstrip('/')}")

    def parsed(self, name: str, parse: Parse[T]) -> Iterator[T]:
        """Yield the values of a key.

        Raises:
            SettingsError: one is invalid.
        """
        lines = self._assignments.get(name)
        if not lines:
            return
        specifiers = self._specified.at_start if SETTINGS[name].at_start else self._specified.in_unit
        for line in lines:
            for text in _texts(line, specifiers):
                yield located(line, lambda text=text: parse(text, self.shown(name)))  # type: ignore[misc]  # called at once


def _texts(line: Assignment, specifiers: Mapping[str, str]) -> tuple[str, ...]:
    words = located(line, lambda: split_words(line.value)) if SETTINGS[line.key].has_words else (line.value,)
    return tuple(located(line, lambda: tuple(expand(word, specifiers) for word in words)))


def located(line: Assignment, check: Callable[[], T]) -> T:
    """Return the result of a function, whose error is that of a line.

    Raises:
        SettingsError: the function has raised a Solo5Error, or a ValueError with the end of a sentence.
    """
    try:
        return check()
    except SettingsError:  # has its line already
        raise
    except Solo5Error as error:
        raise line.error(error.sentence, error.hint) from error
    except ValueError as error:
        raise line.error(f"{line} {error}.") from error
