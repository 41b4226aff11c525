"""What holds for every reader of bytes that another program wrote: a value, or one error of ours in one sentence."""

from collections.abc import Callable
from typing import TypeVar

from solo5_systemd.base.errors import Solo5Error

T = TypeVar("T")

LONGEST = 4096
"""Characters of an error with its hint."""


def complaint(error: Solo5Error) -> str:
    """Return what is wrong with the text of an error; empty where nothing is."""
    text = str(error)
    if len(text) > LONGEST:
        return f"{len(text)} characters: {text[:200]!r}"
    strange = sorted({character for character in text if not character.isprintable()})
    if strange:
        return f"not printable, for {strange}: {text[:200]!r}"
    if not error.sentence.endswith("."):
        return f"no sentence: {text[:200]!r}"
    return ""


def value_or_refusal(
    read: Callable[..., T], *arguments: object, error: type[Solo5Error] = Solo5Error, **named: object
) -> T | None:
    """Return what a reader makes of its arguments, None where it refuses them as it should.

    Any other exception passes, and fails the test.
    """
    value, fault = None, ""
    try:
        value = read(*arguments, **named)
    except error as refused:
        fault = complaint(refused)
    assert fault == ""  # of a value too: whether any of the examples is refused is left to chance
    return value
