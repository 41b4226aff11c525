"""Ready= of a declaration: what makes a guest ready, for updates."""

from dataclasses import dataclass

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.network.model import Protocol, port_number

PATTERN_MAX = 500
"""Characters of a pattern, as in a job's `ready` block."""

_CONSOLE = "console"
_EXPECTED = "expected tcp:PORT, udp:PORT or console:PATTERN, such as tcp:443"


@dataclass(frozen=True, kw_only=True)
class ReadyPort:
    """The condition that a port of the guest answers: a TCP connection, or a UDP datagram that the guest returns."""

    protocol: Protocol
    port: int

    def __str__(self) -> str:
        return f"{self.protocol}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class ReadyLine:
    """The condition that a line of the guest's console matches a regular expression."""

    pattern: str

    def __str__(self) -> str:
        return f"{_CONSOLE}:{self.pattern}"


Ready = ReadyPort | ReadyLine


def parse_ready(text: str, option: str) -> Ready:
    """Parse `tcp:443`, `udp:53` or `console:PATTERN`; the result as text is parsed to the same.

    Args:
        option: what it is the value of, for errors: `Ready=` or `--ready`.

    Raises:
        InvalidRequestError: malformed.
    """
    kind, colon, rest = text.partition(":")
    if kind == _CONSOLE and colon:
        if not 0 < len(rest) <= PATTERN_MAX or not rest.isprintable():
            raise InvalidRequestError(
                f"{option} {text!r} has no usable pattern: expected a regular expression of one line with 1 to "
                f"{PATTERN_MAX} characters."
            )
        return ReadyLine(pattern=rest)
    if kind not in tuple(Protocol) or not rest.isascii() or not rest.isdigit() or len(rest) > 5:
        raise InvalidRequestError(f"{option} {text!r} is not a condition: {_EXPECTED}.")
    return ReadyPort(protocol=Protocol(kind), port=port_number(int(rest)))
