"""`solo5ctl -H`: the command line of ssh, and that every word arrives on the other host as it was."""

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fast.cli.conftest import Solo5ctl
from tests.support.interpreter import python

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.cli.remote import split_host, ssh_command


@pytest.mark.parametrize(
    ("words", "host", "rest"),
    [
        ("-H web1 ps -a", "web1", "ps -a"),
        ("-Hweb1 ps", "web1", "ps"),
        ("--host web1 ps", "web1", "ps"),
        ("--host=web1 ps", "web1", "ps"),
        ("--no-color -H web1 --version", "web1", "--no-color --version"),
        ("ps -H web1", None, "ps -H web1"),
        ("run a.hvt -H web1", None, "run a.hvt -H web1"),
        ("--version", None, "--version"),
        ("-H", "", ""),
        ("", None, ""),
    ],
)
def test_a_host_is_before_the_verb(words: str, host: str | None, rest: str) -> None:
    assert split_host(words.split()) == (host, rest.split())


@pytest.mark.parametrize(
    ("host", "arguments"),
    [
        ("web1", ["-T", "-x", "--", "web1", "solo5ctl ps"]),
        ("root@web1.example.org", ["-T", "-x", "--", "root@web1.example.org", "solo5ctl ps"]),
        ("root@web1:2222", ["-T", "-x", "-p", "2222", "--", "root@web1", "solo5ctl ps"]),
        ("::1", ["-T", "-x", "--", "::1", "solo5ctl ps"]),
        ("fe80::1%eth0", ["-T", "-x", "--", "fe80::1%eth0", "solo5ctl ps"]),
        ("fd00::1", ["-T", "-x", "--", "fd00::1", "solo5ctl ps"]),
        ("a@[fd00::1]:22", ["-T", "-x", "-p", "22", "--", "a@fd00::1", "solo5ctl ps"]),
    ],
)
def test_the_host_of_ssh_has_user_and_port(host: str, arguments: list[str]) -> None:
    assert ssh_command(host, ["ps"], is_terminal=True) == ["ssh", *arguments]


@pytest.mark.parametrize(
    "host",
    [
        *("", "-oProxyCommand=x", "-oProxyCommand=touch${IFS}x", "root@-oProxyCommand=touch x", "-F/tmp/x", "-l@a"),
        *("a b", "a;b", "$(touch x)", "a\n", "127.0.0.1\ntouch x", "ssh://root@127.0.0.1"),
        *("@web1", "root@", "web1:0", "web1:99999", "a:b", "::-x", "[a]"),
    ],
)
def test_what_is_no_host_is_refused(host: str, solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execvp", lambda *line: pytest.fail(f"executed {line}"))  # would replace the test runner
    result = solo5ctl("-H", host, "ps")
    assert result.status == 125
    assert "is not a host: expected [USER@]HOST[:PORT]" in result.err


def test_two_hosts_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="given twice"):
        split_host(["-H", "a", "--host=b", "ps"])


@pytest.mark.parametrize(
    ("words", "terminal", "option"),
    [
        ("logs -f web", True, "-tt"),
        ("run web.hvt", True, "-tt"),
        ("--no-color stats", True, "-tt"),
        ("logs -f web", False, "-T"),
        ("ps", True, "-T"),
    ],
)
def test_a_terminal_is_made_where_ctrl_c_is_needed(words: str, terminal: bool, option: str) -> None:
    assert ssh_command("web1", words.split(), is_terminal=terminal)[1] == option


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20), max_size=5))
def test_each_word_is_quoted_for_the_shell_of_the_other_host(words: list[str]) -> None:
    assert shlex.split(ssh_command("web1", words, is_terminal=False)[-1]) == ["solo5ctl", *words]


def test_a_machine_without_ssh_is_one_sentence(tmp_path: Path) -> None:
    code = "import sys; from solo5_systemd.cli.main import main; sys.exit(main())"
    done = python(code, "-H", "web1", "ps", check=False, PATH=str(tmp_path))
    assert done.returncode == 127
    assert done.stderr.startswith(
        "solo5ctl: ssh cannot be executed: No such file or directory: expected it for --host.\n"
    )
