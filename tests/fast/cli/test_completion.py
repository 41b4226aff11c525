"""The shell completions offer the verbs and options of the parser."""

import argparse
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from solo5_systemd.cli.parser import VERBS, build, load

COMPLETIONS = Path(__file__).parents[3] / "completions"
BASH = COMPLETIONS / "solo5ctl.bash"
ZSH = COMPLETIONS / "_solo5ctl"

TASKS = """
solo5ctl() {
    case "$*" in
        "ps -q") echo web ;;
        "ps -a -q") echo web; echo old ;;
        "network ls -q") echo default ;;
        "disk ls -q") echo data ;;
        "disk ls --snapshots -q") echo data@one; echo other@two ;;
    esac
}
"""


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every parser by its verb: ``, `run`, `network`, `network ls` …"""
    top, verbs = build()
    yield "", top
    for verb, parser in verbs.items():
        load(verb, parser)
        yield verb, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    yield f"{verb} {name}", inner


PARSERS = dict(parsers())


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def bash(*words: str) -> set[str]:
    """Return the completions of bash for the last word."""
    script = (
        f"source {BASH}; {TASKS} COMP_WORDS=({' '.join(repr(word) for word in ('solo5ctl', *words))}); "
        f"COMP_CWORD={len(words)}; _solo5ctl; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["/bin/bash", "-c", script], check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize("words", PARSERS)
def test_bash_offers_exactly_the_options(words: str) -> None:
    assert bash(*words.split(), "-") == options(PARSERS[words])


def test_bash_offers_exactly_the_verbs() -> None:
    assert bash("") == set(VERBS)
    assert bash("--no-color", "st") == {"stop", "stats"}
    assert bash("-H", "root@web1", "st") == {"stop", "stats"}
    assert bash("--host", "=", "web1", ":", "22", "st") == {"stop", "stats"}
    assert bash("-H", "") == set()
    assert bash("network", "") == {"ls", "inspect", "repairs"}


RUNNING = ("stop", "restart", "kill", "sleep", "wake", "freeze", "thaw", "stats", "export")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        *(([verb, ""], {"web"}) for verb in RUNNING),
        *(([verb, ""], {"web", "old"}) for verb in ("rm", "inspect", "logs", "wait")),
        (["run", "--tender", ""], {"hvt", "spt"}),
        (["stop", "-s", ""], {"INT", "TERM"}),
        (["kill", "--signal", ""], {"INT", "TERM", "KILL"}),
        (["run", "--name", ""], set()),
        (["run", "--net", "service", "="], {"default"}),
        (["run", "--net", "service", "=", "de"], {"default"}),
        (["network", "inspect", ""], {"default"}),
        (["disk", "inspect", ""], {"data"}),
        (["disk", "inspect", "/dev/nul"], {"/dev/null"}),
        (["disk", "rm", "data", ""], {"data", "data@one", "other@two"}),
        (["disk", "export", ""], {"data", "data@one", "other@two"}),
        (["disk", "snapshot", ""], {"data"}),
        (["disk", "restore", ""], {"data"}),
        (["disk", "restore", "data", ""], {"one"}),
        (["disk", "snapshot", "data", "--as", ""], set()),
        (["disk", "create", ""], set()),
        (["disk", ""], {"create", "ls", "inspect", "resize", "rm", "import", "export", "snapshot", "restore"}),
        (["run", "-d", "--memory", "64"], {"64M"}),
    ],
)
def test_bash_offers_values(words: list[str], offered: set[str]) -> None:
    assert bash(*words) == offered


def test_bash_offers_files_for_images_and_disks(tmp_path: Path) -> None:
    (tmp_path / "a.hvt").touch()
    (tmp_path / "b.img").touch()
    here = f"{tmp_path}/"
    both = {f"{here}a.hvt", f"{here}b.img"}
    assert bash("image", here) == both
    assert bash("run", "-d", "--name", "x", here) == both
    assert bash("run", "--block", "storage", "=", here) == both


def test_after_the_image_no_options_are_offered(tmp_path: Path) -> None:
    assert bash("run", "-m", "64M", "web.hvt", "-") == set()
    assert bash("run", "--net", "service", "=", "default", "web.hvt", "--") == set()
    assert "--detach" in bash("run", "--net", "service", "=", "default", "--")


def zsh_section(words: str) -> str:
    text = ZSH.read_text()
    verb, _, inner = words.partition(" ")
    if not verb:
        return text[text.index("\n_solo5ctl() {") :]
    if verb in ("network", "disk"):
        begin, end = ("network() {", "verb() {") if verb == "network" else ("disk_verb() {", "network() {")
        text = text[text.index(f"_solo5ctl_{begin}") : text.index(f"_solo5ctl_{end}")]
        common = text[text.index("common=(") : text.index(")\n", text.index("common=("))]
        return common if not inner else common + text[text.index(f"({inner})\n") :].partition(";;")[0]
    common = text[text.index("_solo5ctl_verb() {") : text.index("case $1 in")]
    section = text[text.rindex(f"    ({verb})\n") :].partition("\n      ;;")[0]
    if "$json" not in section:
        common = re.sub(r"json=\(.*\)", "", common)
    return common + section


@pytest.mark.parametrize("words", PARSERS)
def test_zsh_offers_exactly_the_options(words: str) -> None:
    # `--long[what it is]`, or `{-s,--long}` before the description; a `+` where a value may follow at once
    offered = set(re.findall(r"(--[a-z-]+)(?=[\[}])|(?<=\{)(-[A-Za-z])(?=\+?,)", zsh_section(words)))
    assert {long or short for long, short in offered} == options(PARSERS[words])


def test_zsh_has_the_summary_of_each_verb() -> None:
    text = ZSH.read_text()
    assert [verb for verb, summary in VERBS.items() if f"{verb}:{summary}" not in text] == []
