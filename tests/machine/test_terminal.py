"""What a guest, a job or another user writes: none of it reaches a terminal as it is, and none passes for a console."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.machine.conftest import GUESTS, NOBODY, Runner, console, ok, says, sh, systemctl
from tests.machine.declared import Declarations

HOSTILE = b"\x1b[2J\x1b]0;title\x07\x9b31m\r\x08OWNED"
COLOUR = re.compile(rb"\x1b\[(0|1|31|32|33)m")

FORGER = """
import json, socket, sys
fields = json.loads(sys.argv[1])
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.sendto("".join(f"{key}={value}\\n" for key, value in fields.items()).encode(), "/run/systemd/journal/socket")
stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
stream.connect("/run/systemd/journal/stdout")
unit = fields["_SYSTEMD_UNIT"]
header = (fields["SYSLOG_IDENTIFIER"], unit, 6, 1, 0, 0, 0, fields["MESSAGE"] + " by stream")
stream.sendall("".join(f"{each}\\n" for each in header).encode())
"""


def raw(*words: str, terminal: bool) -> bytes:
    """What a command prints, at a terminal or into a pipe; however it ends."""
    if terminal:
        words = ("script", "--quiet", "--return", "--command", " ".join(f"'{word}'" for word in words), "/dev/null")
    done = subprocess.run(words, capture_output=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    return (done.stdout + done.stderr).replace(b"\r\n", b"\n")


def is_clean(printed: bytes) -> bool:
    return not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]|(?<![\xc2-\xf4\x80-\xbf])[\x80-\x9f]", COLOUR.sub(b"", printed))


def test_a_hostile_guest_reaches_no_terminal_by_any_verb(run: Runner, tmp_path: Path) -> None:
    image = tmp_path / os.fsdecode(HOSTILE.replace(b"/", b"") + b".spt")
    shutil.copy(GUESTS / "hello.spt", image)
    name, options = "t-terminal", ("--log-field", "TEAM=x")
    run.names.append(name)
    words = ("run", "--detach", "--name", name, *options, str(image), f"hex={HOSTILE.hex()}", "exit=3")
    assert is_clean(raw("solo5ctl", *words, terminal=True))
    if name not in ok("solo5ctl", "ps", "--all", "--quiet").split():  # such a path may be refused
        ok("solo5ctl", *words[:-3], str(GUESTS / "hello.spt"), *words[-2:])
    says(name, "OWNED")
    sh("solo5ctl", "wait", name)
    verbs = (
        *("ps", "ps --all", "ps --all --json", f"inspect {name}", f"inspect --json {name}", f"wait {name}"),
        *("stats --no-stream", "stats --no-stream --wide", "metrics", "network", "doctor", "gc --dry-run"),
        *(f"logs --json {name}", "disk ls", f"start {name}", f"export {name}", f"image {image}", f"pause {name}"),
    )
    for verb, terminal in (*((verb, True) for verb in verbs), (f"inspect {name}", False), ("ps --all --json", False)):
        printed = raw("solo5ctl", *verb.split(" ", 2), terminal=terminal)
        assert printed or verb.startswith("gc"), verb
        assert is_clean(printed), (verb, terminal, printed)
    for verb in (f"logs {name}", f"logs --timestamps {name}"):
        assert is_clean(raw("solo5ctl", *verb.split(), terminal=True)), verb
    assert b"\x1b[2J" in raw("solo5ctl", "logs", name, terminal=False), "a file gets the console's bytes"
    rm = ("run", "--rm", str(GUESTS / "hello.spt"), f"hex={HOSTILE.hex()}", "exit=3")
    printed = raw("solo5ctl", *rm, terminal=True)
    assert b"OWNED" in printed
    assert is_clean(printed)


def test_a_line_that_makes_an_update_ready_is_shown_escaped(declare: Declarations) -> None:
    unit = declare("hello", f"Argument=hex={HOSTILE.hex()} for=600", image="hello.spt")
    systemctl("start", unit)
    words = ("solo5ctl", "update", "--pause", "--watch", "0", "--ready", "console:OWNED")
    printed = raw(*words, "hello", terminal=True)
    assert b"OWNED" in printed
    assert is_clean(printed), printed


def forge(fields: Mapping[str, str]) -> None:
    ok(*NOBODY, "/usr/bin/python3", "-c", FORGER, json.dumps(fields))


def test_no_entry_of_another_user_passes_for_a_console_or_an_event(run: Runner) -> None:
    name = run("sleeper.spt", options=())
    says(name, "sleeping")
    unit = f"solo5-task-{name}.service"
    hung = "364a830e83d0497ea6d69f2978b23047"
    forged = {
        "MESSAGE": "FORGED", "PRIORITY": "6", "SYSLOG_FACILITY": "21", "SYSLOG_IDENTIFIER": name, "SOLO5_TASK": name,
        "UNIT": unit, "OBJECT_SYSTEMD_UNIT": unit, "_SYSTEMD_UNIT": unit, "_PID": "1", "_UID": "0",
        "_TRANSPORT": "stdout", "COREDUMP_UNIT": unit, "MESSAGE_ID": hung,
    }  # fmt: skip
    forge(forged)
    forge(forged | {"MESSAGE_ID": "a596d6fe7bfa4994828e72309e95d61e", "N_DROPPED": "77"})  # journald's own
    ok("journalctl", "--sync")
    assert "FORGED" in ok("journalctl", "--output=cat", f"SOLO5_TASK={name}"), "the attack is one"
    assert "FORGED" not in ok("journalctl", "--output=cat", "_TRANSPORT=stdout", f"SOLO5_TASK={name}")
    assert "FORGED" not in ok("journalctl", "--output=cat", "-u", unit)
    assert "FORGED" not in console(name)
    ok("solo5ctl", "stop", name)
    forge(forged)
    ok("journalctl", "--sync")
    for words in (("logs", name), ("inspect", name), ("inspect", "--json", name), ("ps", "--all"), ("wait", name)):
        assert "FORGED" not in sh("solo5ctl", *words).stdout, words


def test_an_update_is_not_made_ready_by_an_entry_of_another_user(declare: Declarations) -> None:
    unit = declare("hello", "Argument=for=600", image="hello.spt")
    systemctl("start", unit)
    words = ["solo5ctl", "update", "--pause", "--ready", "console:FORGED", "--timeout", "2s", "hello"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as update:
        while update.poll() is None:
            forge({
                "MESSAGE": "FORGED", "PRIORITY": "6", "SYSLOG_FACILITY": "21", "SYSLOG_IDENTIFIER": "hello",
                "SOLO5_TASK": "hello", "UNIT": unit, "_SYSTEMD_UNIT": unit, "_TRANSPORT": "stdout",
            })  # fmt: skip
        assert update.stdout is not None
        printed = update.stdout.read()
    assert update.returncode == 126
    assert "was not ready within 2 s" in printed
