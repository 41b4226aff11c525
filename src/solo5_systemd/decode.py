"""Typed getters for mappings that somebody else wrote: TOML files, D-Bus dictionaries, JSON of ours on disk.

Nothing behind these getters checks a type again. Each error names the key by its whole path (`network.default.mtu`),
the value, and what was expected.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from solo5_systemd.errors import InvalidRequestError, Solo5Error

T = TypeVar("T")


class Fields:
    """One mapping under a name, read key by key.

    Args:
        mapping: what was decoded, of any shape.
        where: the path to it, as the reader of an error knows it.
        error: the class to raise.

    Raises:
        Solo5Error: (of class `error`) `mapping` is not a mapping with text keys.
    """

    def __init__(
        self, mapping: object, where: str = "", *, error: type[Solo5Error] = InvalidRequestError
    ) -> None:
        self.where = where
        self._error = error
        if not isinstance(mapping, Mapping) or not all(isinstance(key, str) for key in mapping):
            raise error(f"{where or 'the document'} is {_show(mapping)}: expected a table of named values.")
        self._mapping: Mapping[str, object] = mapping

    def path(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def keys(self) -> Iterable[str]:
        return self._mapping.keys()

    def allow(self, *known: str) -> None:
        """Refuse keys that nobody reads: a misspelt setting must not be silently without effect."""
        for key in self._mapping:
            if key not in known:
                raise self._error(
                    f"{self.path(key)} is not a known key: expected one of {', '.join(sorted(known))}."
                )

    def text(self, key: str, default: str | None = None) -> str:
        return self._get(key, str, "a text", default)

    def boolean(self, key: str, default: bool | None = None) -> bool:  # noqa: FBT001 - a getter's default
        return self._get(key, bool, "true or false", default)

    def integer(self, key: str, default: int | None = None, *, low: int, high: int) -> int:
        value = self._get(key, int, f"a whole number from {low} to {high}", default)
        if isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(key, value, f"a whole number from {low} to {high}")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        values = self._get(key, (list, tuple), "a list of texts", default)
        if not all(isinstance(value, str) for value in values):
            raise self.wrong(key, values, "a list of texts")
        return tuple(values)

    def table(self, key: str) -> "Fields":
        return Fields(self._mapping.get(key, {}), self.path(key), error=self._error)

    def tables(self, key: str) -> "tuple[Fields, ...]":
        values = self._get(key, (list, tuple), "a list of tables", ())
        return tuple(Fields(v, f"{self.path(key)}[{i}]", error=self._error) for i, v in enumerate(values))

    def parsed(self, key: str, parse: Callable[[str], T], default: T | None = None) -> T:
        """A text that `parse` turns into a value; its own error is kept, with the key put before it."""
        if key not in self._mapping and default is not None:
            return default
        try:
            return parse(self.text(key))
        except Solo5Error as error:
            raise self._error(f"{self.path(key)}: {error.sentence}", error.hint) from error
        except ValueError as error:
            raise self._error(f"{self.path(key)}: {error}.") from error

    def has(self, key: str) -> bool:
        return key in self._mapping

    def wrong(self, key: str, value: object, expected: str) -> Solo5Error:
        """The error for a value that is of the right type and still not right."""
        return self._error(f"{self.path(key)} is {_show(value)}: expected {expected}.")

    def _get(self, key: str, kind: type | tuple[type, ...], expected: str, default: object | None) -> T:  # type: ignore[type-var]
        if key not in self._mapping:
            if default is None:
                raise self._error(f"{self.path(key)} is missing: expected {expected}.")
            return default  # type: ignore[return-value]
        value = self._mapping[key]
        if not isinstance(value, kind):
            raise self.wrong(key, value, expected)
        return value  # type: ignore[return-value]


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
