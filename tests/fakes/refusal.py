"""What a check has against its arguments."""

from collections.abc import Callable

from solo5_systemd.errors import Solo5Error


def refusal(check: Callable[..., object], *arguments: object, **named: object) -> str:
    """Return the sentence with which a check refuses; empty where it accepts."""
    try:
        check(*arguments, **named)
    except Solo5Error as error:
        return str(error)
    return ""
