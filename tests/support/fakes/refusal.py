"""The error of a check as text."""

from collections.abc import Callable

from solo5_systemd.base.errors import Solo5Error


def refusal(check: Callable[..., object], *arguments: object, **named: object) -> str:
    """Return the text of the error that a check raises; empty if it raises none."""
    try:
        check(*arguments, **named)
    except Solo5Error as error:
        return str(error)
    return ""
