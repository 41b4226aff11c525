"""What is printed may have a guest's text in it: none of it reaches a terminal as it is."""

import ast
import json
import re
from pathlib import Path

import pytest
from tests.fast.cli.conftest import Stream

from solo5_systemd.cli.terminal import Screen

SOURCES = Path(__file__).parents[3] / "src" / "solo5_systemd"
HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\udc9b\x7f\x00"
ESCAPES = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")

WRITERS = {
    "cli/terminal.py": "what every verb prints with",
    "cli/verbs/disk.py": "the content of a disk, to standard output if that is no terminal",
    "cli/remote.py": "flushes before it executes ssh",
    "pid1/__main__.py": "flushes before its end",
    "pid1/generator.py": "errors, which are printable, for PID 1's log",
    "pid1/update.py": "the same",
    "dbus/process.py": "log lines, for the journal, and an error of this package alone",
    "host_volume/plugin.py": "errors and JSON, for Nomad",
    "host_volume/__main__.py": "its version",
    "nomad/__main__.py": "an error of this package alone",
    "goplugin/hclog.py": "JSON, for Nomad",
    "goplugin/server.py": "an error of this package alone",
}
"""The modules that use standard output or standard error, and for what."""


def writes(path: Path) -> bool:
    """Whether a module names one of both, or calls print."""
    names = {"stdout", "stderr", "__stdout__", "__stderr__"}
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if re.search(r"std(out|err)|print|os\.write", text) else ():
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) == "sys":
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "sys" and names & {each.name for each in node.names}:
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.write" and ast.unparse(node.args[0]) in "12":
            return True
    return False


def test_one_module_of_the_command_writes_to_a_terminal() -> None:
    found = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if writes(path)}
    assert found == set(WRITERS)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("method", ["write", "redraw", "message", "json"])
def test_control_characters_are_escaped_whoever_prints_them(method: str, terminal: bool) -> None:
    out, err = Stream(terminal=terminal), Stream(terminal=terminal)
    getattr(Screen(out, err, {}), method)(f"a {HOSTILE} b")
    written = (out.getvalue() + err.getvalue()).removeprefix(b"\x1b[H\x1b[J")
    assert not ESCAPES.search(written)
    assert b"1b[2J" in written


def test_json_has_bytes_that_are_not_utf_8() -> None:
    out = Stream(terminal=False)
    Screen(out, Stream(terminal=False), {}).json({"image": "\udcff"})
    assert json.loads(out.getvalue()) == {"image": "\udcff"}


def test_colours_and_lines_stay() -> None:
    out = Stream(terminal=True)
    screen = Screen(out, Stream(terminal=True), {"TERM": "xterm"})
    screen.write(screen.paint("ok", "green") + "\tü\u00a0\n")
    assert out.getvalue().decode() == "\x1b[32mok\x1b[0m\tü\u00a0\n"


def test_a_console_is_escaped_on_a_terminal_and_exact_elsewhere() -> None:
    line = b"\x1b[2J\xff\tx"
    for terminal, expected in ((True, rb"\x1b[2J\xff" + b"\tx\n"), (False, line + b"\n")):
        out = Stream(terminal=terminal)
        Screen(out, Stream(terminal=terminal), {}).copy(line, to_err=False)
        assert out.getvalue() == expected
