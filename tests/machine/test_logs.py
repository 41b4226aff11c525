"""`solo5ctl logs`: lines of any bytes, and users without permission."""

import json
import subprocess
from collections.abc import Iterator

import pytest
from tests.machine.conftest import Machine, Runner, eventually, ok, says, sh
from tests.machine.consoles import UNLIMITED, shell_task

NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
NO_LINES = "solo5ctl: no console lines: expected root or a member of group systemd-journal.\n"


@pytest.fixture
def writer(machine: Machine) -> Iterator[str]:
    script = r"printf 'a\000b\n\n \377\n\033[2J\n'; printf '%0100000d\nlast' 0; exec sleep 60"
    shell_task("bytes", script, *UNLIMITED)
    yield "bytes"
    ok("systemctl", "stop", "solo5-task-bytes.service")


def test_lines_of_any_bytes_are_copied(writer: str) -> None:
    """journald ends a line at a NUL, and splits one after 48 KiB."""
    eventually(lambda: len(copied(writer)) > 100_000, "the console is in the journal")
    *lines, rest = copied(writer).split(b"\n")
    assert lines[:4] == [b"a", b"b", b" \xff", b"\x1b[2J"]
    assert (b"".join(lines[4:]), max(map(len, lines)), rest) == (b"0" * 100_000, 48 << 10, b"")
    as_json = [json.loads(line) for line in ok("solo5ctl", "logs", "--json", writer).splitlines()]
    assert [line["message"] for line in as_json] == [line.decode("utf-8", "replace") for line in lines]
    assert {line["stream"] for line in as_json} == {"stdout"}
    assert copied(writer, "--tail", "1") == lines[-1] + b"\n"
    assert copied(writer, "--tail", "0") == b""


def copied(name: str, *options: str) -> bytes:
    return subprocess.run(["solo5ctl", "logs", *options, name], stdout=subprocess.PIPE, check=True).stdout


def test_user_without_permission_gets_the_reason_at_once(run: Runner) -> None:
    name = run("sleeper.spt")
    says(name, "sleeping")
    for options in ((), ("--follow",)):
        done = sh(*NOBODY, "solo5ctl", "logs", *options, name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", NO_LINES)
