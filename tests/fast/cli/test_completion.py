"""The completions of bash, whose verbs and options are those of the parser (tests/fast/test_tables.py)."""

import subprocess
from pathlib import Path

import pytest
from tests.tables import BASH

from solo5_systemd.cli.parser import VERBS

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


def bash(*words: str) -> set[str]:
    """Return the completions of bash for the last word."""
    script = (
        f"source {BASH}; {TASKS} COMP_WORDS=({' '.join(repr(word) for word in ('solo5ctl', *words))}); "
        f"COMP_CWORD={len(words)}; _solo5ctl; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["/bin/bash", "-c", script], check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_offers_the_options_of_the_verb() -> None:
    assert bash("ps", "-") == {"-h", "--help", "-a", "--all", "-q", "--quiet", "--json", "--no-color"}
    assert bash("network", "ls", "-") == {"-h", "--help", "-q", "--quiet", "--json", "--no-color"}
    assert bash("network", "-") == {"-h", "--help"}
    assert "--host" in bash("-")


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
