"""`solo5ctl -H HOST VERB …`: runs the same command line on another host by ssh(1), as `systemctl -H` does."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from solo5_systemd.base.errors import InvalidRequestError, NotFoundError

OPTIONS = ("-H", "--host")

_IPV6 = r"[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9._-]+)?"
_HOST = (
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*)@)?"
    rf"(?:(?P<bare>{_IPV6})|"  # `fe80::1` has no port; `[fe80::1]:22` has
    rf"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)|\[(?P<six>{_IPV6})\])(?::(?P<port>[0-9]{{1,5}}))?)"
)

_FOREGROUND = ("run", "logs", "stats", "wait")
"""Verbs that last until Ctrl-C, which reaches the other host by a terminal there only."""


def split_host(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the host of -H before the verb, or None, and the other words; raises InvalidRequestError for two."""
    host: str | None = None
    rest: list[str] = []
    left = list(words)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if option in OPTIONS or (word.startswith("-H") and not word.startswith("--")):
            if host is not None:
                raise InvalidRequestError(f"{option} is given twice: expected one host.")
            if option not in OPTIONS:  # -Hweb1
                host = word[2:]
            elif equals:
                host = value
            else:
                host = left.pop(0) if left else ""
        else:
            rest.append(word)
    return host, [*rest, *left]


def ssh_command(host: str, words: Sequence[str], *, is_terminal: bool) -> list[str]:
    """Return the command line of ssh(1), without its path.

    Args:
        host: [USER@]HOST[:PORT]; an IPv6 address with a port is in brackets.
        is_terminal: stdout is a terminal, so that the other host's solo5ctl has to escape a console.

    Raises:
        InvalidRequestError: the host is malformed, such as an option of ssh.
    """
    match = re.fullmatch(_HOST, host, re.ASCII)
    if not match or not 1 <= int(match["port"] or 22) <= 65535:
        raise InvalidRequestError(
            f"--host {host!r} is not a host: expected [USER@]HOST[:PORT], such as root@web1.example.org."
        )
    user = f"{match['user']}@" if match["user"] else ""
    wants_terminal = is_terminal and next((word for word in words if not word.startswith("-")), "") in _FOREGROUND
    return [
        "ssh",
        "-tt" if wants_terminal else "-T",
        "-x",
        *(("-p", match["port"]) if match["port"] else ()),
        "--",
        user + (match["bare"] or match["name"] or match["six"]),
        shlex.join(["solo5ctl", *words]),
    ]


def execute_there(host: str, words: Sequence[str]) -> NoReturn:
    """Replace this process by ssh(1), which exits as the other host's solo5ctl, or with 255; raises NotFoundError."""
    line = ssh_command(host, words, is_terminal=os.isatty(1))
    sys.stdout.flush()
    try:
        os.execvp(line[0], line)  # noqa: S606 - no shell here; on the other host, all words are quoted
    except OSError as error:
        raise NotFoundError(
            f"ssh cannot be executed: {error.strerror}: expected it for --host.",
            "Install it: apt install openssh-client",
        ) from error
