"""Plain values on D-Bus: booleans, integers, texts, lists, and tables as `a{sv}` with the type of each value."""

from collections.abc import Iterator

RECORD, RECORDS = "a{sv}", "aa{sv}"
"""A record by the names of its fields, `settings.records.document`, and a list of them."""


_SIMPLE = {str: "s", int: "t", bool: "b"}
"""The types of values that are no list or table. No integer of a record is negative."""


def type_of(value: object) -> str:
    """Return the type of a plain value; an empty list is one of texts."""
    if (simple := _SIMPLE.get(type(value))) is not None:
        return simple
    if isinstance(value, dict):
        return "a{st}" if value and {int}.issuperset(map(type, value.values())) else RECORD
    assert isinstance(value, list)  # noqa: S101 - a plain value
    return RECORDS if value and isinstance(value[0], dict) else "as"


def busctl_words(value: object, kind: str) -> Iterator[str]:
    """Yield a plain value for busctl(1): a list and a table are preceded by their length, a variant by its type."""
    match value:
        case dict():
            yield str(len(value))
            for key, each in value.items():
                yield key
                if kind == RECORD:
                    yield type_of(each)
                yield from busctl_words(each, type_of(each))
        case list():
            yield str(len(value))
            for each in value:
                yield from busctl_words(each, kind[1:])
        case _:
            yield str(value)
