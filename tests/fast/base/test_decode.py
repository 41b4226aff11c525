from collections.abc import Callable

import pytest
from tests.support.fakes.refusal import refusal

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError, SettingsError
from solo5_systemd.base.names import network_name

FIELDS = Fields(
    {
        "text": "t",
        "number": 7,
        "yes": True,
        "list": ["a", "b"],
        "mixed": ["a", 1],
        "table": {"inner": {"deep": 1}},
        "tables": [{"x": 1}, {"x": "no"}],
        "long": "x" * 200,
    },
    "top",
)


@pytest.mark.parametrize(
    "read, value",
    [
        (lambda: FIELDS.text("text"), "t"),
        (lambda: FIELDS.text("absent", "d"), "d"),
        (lambda: FIELDS.text("absent", ""), ""),
        (lambda: FIELDS.boolean("yes"), True),
        (lambda: FIELDS.integer("number", low=7, high=7), 7),
        (lambda: FIELDS.texts("list"), ("a", "b")),
        (lambda: FIELDS.texts("absent", ("d",)), ("d",)),
        (lambda: FIELDS.texts("absent", ()), ()),
        (lambda: FIELDS.table("table").table("inner").integer("deep", low=0, high=9), 1),
        (lambda: list(FIELDS.table("absent")), []),
        (lambda: FIELDS.tables("tables")[0].integer("x", low=0, high=9), 1),
        (lambda: FIELDS.tables("absent"), ()),
        (lambda: FIELDS.parsed("text", network_name), "t"),
        (lambda: ("text" in FIELDS, "absent" in FIELDS), (True, False)),
    ],
)
def test_a_getter_gives_the_value_or_the_default(read: Callable[[], object], value: object) -> None:
    assert read() == value


@pytest.mark.parametrize(
    "read, words",
    [
        (lambda: FIELDS.text("absent"), "top.absent is missing: expected a string."),
        (lambda: FIELDS.text("number"), "top.number is 7: expected a string."),
        (lambda: FIELDS.boolean("number"), "top.number is 7: expected true or false."),
        (lambda: FIELDS.boolean("absent"), "top.absent is missing: expected true or false."),
        (lambda: FIELDS.integer("yes", low=0, high=9), "top.yes is true: expected a whole number from 0 to 9."),
        (lambda: FIELDS.integer("text", low=0, high=9), "top.text is 't': expected a whole number from 0 to 9."),
        (lambda: FIELDS.integer("number", low=8, high=9), "top.number is 7: expected a whole number from 8 to 9."),
        (lambda: FIELDS.integer("number", low=0, high=6), "top.number is 7: expected a whole number from 0 to 6."),
        (lambda: FIELDS.texts("text"), "top.text is 't': expected a list of strings."),
        (lambda: FIELDS.texts("mixed"), "top.mixed is ['a', 1]: expected a list of strings."),
        (lambda: FIELDS.table("text"), "top.text is 't': expected a table of named values."),
        (lambda: FIELDS.tables("list"), "top.list[0] is 'a': expected a table of named values."),
        (lambda: FIELDS.tables("tables")[1].integer("x", low=0, high=1), "top.tables[1].x is 'no'"),
        (lambda: FIELDS.table("table").table("inner").text("deep"), "top.table.inner.deep is 1: expected a string."),
        (lambda: FIELDS.parsed("long", network_name), "top.long: network name 'xxx"),
        (lambda: FIELDS.parsed("text", int), "top.text: invalid literal for int() with base 10: 't'."),
        (lambda: FIELDS.parsed("absent", int), "top.absent is missing: expected a string."),
        (lambda: FIELDS.allow("text", "number"), "top.yes is not a known key: expected one of number, text."),
        (lambda: Fields(7), "the document is 7: expected a table of named values."),
        (lambda: Fields({1: "a"}), "the document is {1: 'a'}: expected a table of named values."),
    ],
)
def test_an_error_names_the_key_the_value_and_what_was_expected(read: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read()
    assert str(caught.value).startswith(words)


def test_the_error_is_of_the_class_that_was_requested_however_deep() -> None:
    fields = Fields({"a": {"b": 1}}, error=SettingsError)
    with pytest.raises(SettingsError, match=r"^a\.b is 1"):
        fields.table("a").text("b")


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        FIELDS.boolean("long")
    assert len(str(caught.value)) < 150


def test_known_keys_are_allowed() -> None:
    assert refusal(Fields({"a": 1}).allow, "a", "b") == ""
