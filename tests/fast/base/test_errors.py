import pytest

from solo5_systemd.base import errors
from solo5_systemd.base.errors import BY_DBUS_NAME, MAX_HINT, MAX_SENTENCE, Solo5Error

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Solo5Error)]


def test_every_class_crosses_the_bus_under_a_name_of_its_own() -> None:
    assert {BY_DBUS_NAME[cls.dbus_name] for cls in ALL} == set(ALL)
    assert len(BY_DBUS_NAME) == len(ALL)


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_exit_statuses_are_podmans(cls: type[Solo5Error]) -> None:
    assert cls.exit_status == {"ImageError": 126, "StartError": 126, "NotFoundError": 127}.get(cls.__name__, 125)


@pytest.mark.parametrize(
    "quoted, shown",
    [
        ("a\nb", "a\\x0ab"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u2028", "\\u2028"),
        ("\udcff", "\\xff"),
        ("ü → 日本", "ü → 日本"),
        ("tab\t", "tab\\x09"),
    ],
)
def test_what_an_error_quotes_is_printable(quoted: str, shown: str) -> None:
    error = Solo5Error(f"it is {quoted}.", f"Leave {quoted} out.")
    assert (error.sentence, error.hint) == (f"it is {shown}.", f"Leave {shown} out.")
    assert str(error).isprintable()


@pytest.mark.parametrize("char", ["x", "\0", "\U000e0001"])
def test_a_long_error_keeps_its_beginning_and_its_end(char: str) -> None:
    error = Solo5Error(f"it is {char * 100_000}: expected less.", char * 100_000)
    assert error.sentence.startswith("it is ")
    assert error.sentence.endswith(": expected less.")
    assert (len(error.sentence), len(error.hint)) == (MAX_SENTENCE, MAX_HINT)
