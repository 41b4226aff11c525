"""Commands that documents show are accepted by the real parsers: verbs, options, targets of make, units, modules."""

import argparse
import importlib.util
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.bootlib import arguments
from tests.support.doc_tables import DOCS

from solo5_systemd.cli import parser

ROOT = DOCS.parent
PAPERS = sorted(
    path
    for places in ("*.md", "docs/**/*.md", "docs/man/*", "tests/*.md", "tests/machine/*.md", "examples/**/*.hcl")
    for path in ROOT.glob(places)
)
MAKEFILE = (ROOT / "Makefile").read_text()
PROGRAMS = ("solo5ctl", "make", "systemctl", "tests/machine/boot", "python3")
UNITS = {path.name for path in (ROOT / "units").iterdir()}
OWN_UNIT = re.compile(r"solo5-(task|network|prepare|update|thaw|outcome|outcome-declared|dhcp)([-@].*)?")
_FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4,}.*\n)+", re.MULTILINE)
_MANUAL = re.compile(r"^\.nf\n(.*?)^\.fi", re.MULTILINE | re.DOTALL)
_LINE = re.compile(rf"^\s*(?:[#$] )?((?:{'|'.join(map(re.escape, PROGRAMS))}) .*)$")
_CALL = re.compile(r"`((?:solo5ctl|make) [^`]+)`")


def blocks(paper: Path) -> list[str]:
    """Return the blocks of a paper that show what to type."""
    text = paper.read_text()
    if paper.parent.name == "man":
        return [found.replace("\\-", "-").replace("\\e", "\\") for found in _MANUAL.findall(text)]
    fenced = _FENCED.findall(text)
    return [found for found in fenced + _INDENTED.findall(_FENCED.sub("\n", text)) if "▶" not in found]  # a picture


def commands(block: str) -> Iterator[list[str]]:
    """Yield the words of each command of ours in a block, up to what a shell does with it further on."""
    for line in re.sub(r"\\\n\s*", " ", block).splitlines():
        found = _LINE.match(line)
        if found and line.count("'") % 2 == 0:  # a command in the quotes of another one has half of them
            lexer = shlex.shlex(found[1], posix=True, punctuation_chars=";&|<>")
            lexer.whitespace_split = True
            yield from _simple(list(lexer))


def _simple(words: Sequence[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if re.fullmatch(r"[;&|<>]+", word):
            if command and command[0] in PROGRAMS:
                yield command
            command = []
        else:
            command.append(word)


SHOWN = [
    (f"{paper.relative_to(ROOT)}: {shlex.join(words)}", words)
    for paper in PAPERS
    for block in blocks(paper)
    for words in commands(block)
]
CALLS = sorted({" ".join(call.split()) for paper in PAPERS for call in _CALL.findall(paper.read_text())})


def complaint(words: Sequence[str]) -> str:
    """Return why a command would not be accepted; empty: it would."""
    try:
        return _complaint(words)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"


def _complaint(words: Sequence[str]) -> str:
    match words:
        case ["solo5ctl", *rest]:
            parser.parse(rest)
        case ["make", *rest]:
            return _make(rest)
        case ["tests/machine/boot", *rest]:
            return "" if "[OPTION]…" in rest or "--shell" in rest else _boot(rest)
        case ["systemctl", *rest]:
            return _systemctl(rest)
        case ["python3", "-m", module, *_]:
            return "" if importlib.util.find_spec(module) else f"no module {module}"
        case _:
            pass
    return ""


def _make(words: Sequence[str]) -> str:
    if "-C" in words:
        return ""
    wrong = [word for word in words if not _made(word)]
    return f"the Makefile has no {wrong}" if wrong else ""


def _made(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return f"$({name})" in MAKEFILE if equals else bool(re.search(rf"^{re.escape(word)}:", MAKEFILE, re.MULTILINE))


def _boot(words: Sequence[str]) -> str:
    asked = arguments.parse([_copy(word) if option == "--copy" else word for option, word in pairwise(["", *words])])
    inner = list(asked.command)
    while inner and (inner[0] == "env" or "=" in inner[0]):
        inner.pop(0)
    tests = [word.removeprefix("/srv/tests/") for word in inner if word.endswith(".py")]
    lost = [test for test in tests if not (ROOT / "tests" / test).exists()]
    return f"no test {lost}" if lost else complaint(inner)


def _copy(word: str) -> str:
    """Return the words of --copy with a file that exists in the place of the reader's."""
    return f"{ROOT}:{word.partition(':')[2]}" if re.fullmatch("[^:]+:[^:]+", word) else word


def _systemctl(words: Sequence[str]) -> str:
    unknown = [word for word in words if word.startswith("solo5") and not _unit(word)]
    return f"no unit {unknown}" if unknown else ""


def _unit(word: str) -> bool:
    return bool({word, f"{word}.service"} & UNITS or OWN_UNIT.fullmatch(word))


@pytest.mark.parametrize("words", [pytest.param(words, id=line) for line, words in SHOWN])
def test_a_command_that_a_document_shows_is_accepted(words: list[str]) -> None:
    assert complaint(words) == ""


@pytest.mark.parametrize("words", [pytest.param(words, id=line) for line, words in SHOWN if words[0] == "make"])
def test_what_make_would_boot_is_accepted(words: list[str]) -> None:
    done = subprocess.run([*words, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    booted = [found for found in commands(done.stdout) if found[0] == "tests/machine/boot"]
    assert [complaint(found) for found in booted] == [""] * len(booted)


@pytest.mark.parametrize("call", CALLS)
def test_verbs_options_and_targets_that_a_sentence_names_exist(call: str) -> None:
    assert strange(call) == []


def strange(call: str) -> list[str]:
    """Return the words of a call in a sentence that are no verb, option, target or variable; `NAME` is any value."""
    program, *words = call.split()
    if program == "make":
        return [word for word in words if re.fullmatch(r"[a-z-]+|[A-Z_]+=.*", word) and not _made(word)]
    top, verbs = parser.build()
    [verb, *rest] = [*words, ""]
    if verb.startswith("-"):
        return [] if verb in top._option_string_actions else [verb]
    if verb not in verbs:
        return [verb]
    parser.load(verb, verbs[verb])
    options = {option for each in _with_subverbs(verbs[verb]) for option in each._option_string_actions}
    return [word for word in rest if word.startswith("--") and word not in options]


def _with_subverbs(found: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield found
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def test_what_is_not_accepted_is_found() -> None:
    for line in (
        "solo5ctl run --no-such-option web.hvt",
        "solo5ctl start web",
        "make no-such-target",
        "make bench NO_SUCH_VARIABLE=1",
        "systemctl status solo5-no-such.service",
        "tests/machine/boot --no-such-option -- true",
        "tests/machine/boot -- python3 -m pytest machine/test_no_such.py",
        "python3 -m tests.no_such",
    ):
        assert [complaint(words) for words in commands(line + "\n")] != [""], line
    for call in ("solo5ctl start", "solo5ctl ps --no-such-option", "make no-such-target", "make bench NO_SUCH=1"):
        assert strange(call) != [], call


def test_commands_are_found_in_each_kind_of_document() -> None:
    papers = {shown.partition(":")[0] for shown, _ in SHOWN}
    assert papers >= {"README.md", "HACKING.md", "docs/storage.md", "docs/man/solo5ctl.1", "tests/machine/README.md"}
    assert len(SHOWN) > 100
    assert len(CALLS) > 80
