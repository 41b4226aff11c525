"""Typed getters for decoded TOML, JSON, MessagePack and D-Bus dictionaries.

Types are checked here only. Each error has the full path of the key (`network.default.mtu`), the value, and what was
expected.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeVar

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error

T = TypeVar("T")
W = TypeVar("W", bound=StrEnum)


def json_document(content: bytes, what: str) -> object:
    """Return the value of a JSON document, which an error calls `what`.

    Raises:
        InvalidRequestError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{what} cannot be read: it is not JSON.") from error


class Fields:
    """A mapping, read key by key.

    The getters raise `error` for a value of another type, and for a missing key without a default.

    Args:
        mapping: a decoded value of any type.
        where: its path in an error.

    Raises:
        Solo5Error: (of class `error`) `mapping` is not a mapping with string keys.
    """

    refuses_unknown_keys: ClassVar[bool] = False
    """A record that is read from the mapping has all of its keys."""

    def __init__(self, mapping: object, where: str = "", *, error: type[Solo5Error] = InvalidRequestError) -> None:
        self.where = where
        self._error = error
        if not isinstance(mapping, dict | Mapping) or not {str}.issuperset(map(type, mapping)):
            raise error(f"{where or 'the document'} is {_show(mapping)}: expected a table of named values.")
        self._mapping: Mapping[str, object] = mapping

    def path(self, key: str) -> str:
        """Return the full path of a key, for an error."""
        return f"{self.where}.{key}" if self.where else key

    def having(self, *keys: str) -> Mapping[str, object]:
        """Return those of these keys that exist, with their values as they are."""
        return {key: self._mapping[key] for key in keys if key in self._mapping}

    def over(self, base: Mapping[str, object]) -> Self:
        """Return this mapping with the keys of another one that it lacks."""
        return self.__class__({**base, **self._mapping}, self.where, error=self._error)

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def allow(self, *known: str) -> None:
        """Refuse unknown keys: a misspelt setting must not be ignored silently."""
        for key in self._mapping:
            if key not in known:
                raise self._error(f"{self.path(key)} is not a known key: expected one of {', '.join(sorted(known))}.")

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        if type(found := self._mapping.get(key)) is str:
            return found
        value = self._get(key, "a string", default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def boolean(self, key: str) -> bool:
        """Return a boolean."""
        value = self._get(key, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def integer(self, key: str, *, low: int, high: int) -> int:
        """Return an integer from `low` to `high`."""
        if type(found := self._mapping.get(key)) is int and low <= found <= high:  # isinstance would take a boolean
            return found
        expected = f"a whole number from {low} to {high}"
        raise self.wrong(key, self._get(key, expected), expected)

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self.items(key, "a list of strings", default)
        texts = tuple(value for value in values if isinstance(value, str))
        if len(texts) != len(values):
            raise self.wrong(key, list(values), "a list of strings")
        return texts

    def word(self, key: str, words: type[W]) -> W:
        """Return the word of an enumeration."""
        text = self.text(key)
        try:
            return words(text)
        except ValueError as error:
            known = ", ".join(f'"{word}"' for word in words)
            raise self.wrong(key, text, f"one of {known}") from error

    def table(self, key: str) -> Self:
        """Return a table; an empty one if the key is missing."""
        return self.__class__(self._mapping.get(key, {}), self.path(key), error=self._error)

    def tables(self, key: str) -> tuple[Self, ...]:
        """Return a list of tables; empty if the key is missing."""
        values = self.items(key, "a list of tables", ())
        path = self.path(key)
        return tuple(self.__class__(each, f"{path}[{index}]", error=self._error) for index, each in enumerate(values))

    def split(self, key: str) -> Iterator[Self]:
        """Yield, for each item of a list of strings, the mapping that has it as the key's value."""
        for value in self.items(key, "a list of strings", None):
            yield self.__class__({key: value}, self.where, error=self._error)

    def parsed(self, key: str, parse: Callable[[Any], T], *, is_list: bool = False) -> T:
        """Return the result of `parse` for a string or a list of them; its error has the key's path before it."""
        value = self.texts(key) if is_list else self.text(key)
        try:
            return parse(value)
        except Solo5Error as error:
            raise self._error(f"{self.path(key)}: {error.sentence}", error.hint) from error
        except ValueError as error:
            raise self._error(f"{self.path(key)}: {error}.") from error

    def wrong(self, key: str, value: object, expected: str) -> Solo5Error:
        """Return the error for a value of the right type that is out of bounds."""
        return self._error(f"{self.path(key)} is {_show(value)}: expected {expected}.")

    def items(self, key: str, expected: str, default: tuple[object, ...] | None) -> tuple[object, ...]:
        """Return a list of any values."""
        value = self._get(key, expected, default)
        if not isinstance(value, list | tuple):
            raise self.wrong(key, value, expected)
        return tuple(value)

    def _get(self, key: str, expected: str, default: object = None) -> object:
        if key in self._mapping:
            return self._mapping[key]
        if default is None:
            raise self._error(f"{self.path(key)} is missing: expected {expected}.")
        return default


def _show(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)  # as TOML, JSON and HCL write it
    return text if len(text) <= 80 else f"{text[:77]}…"
