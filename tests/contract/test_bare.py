"""`tests/machine/bare`, with this machine's own root in place of a bare Debian tree."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.support.bootlib import bare, checkout, trees

MARK = Path("/srv/left-by-bare")
CALL = "import sys; from tests.contract import test_bare; sys.exit(test_bare.run_here(sys.argv[1:]))"


def run_here(words: list[str]) -> int:
    """Run `bare` with one file as the checkout; its tree is this root."""
    one_file = [checkout.CHECKOUT / "pyproject.toml"]
    with patch.object(trees, "tree", return_value=Path("/")), patch.object(checkout, "files", return_value=one_file):
        return bare.main(words)


@pytest.fixture
def bare_run(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Start it as a process, with a cache and a place for passing files of its own."""
    passing = tmp_path / "passing"
    passing.mkdir()
    environment = {
        **os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(passing),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OF_THE_HOST": "1",
    }  # fmt: skip

    def start(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", CALL, *words], env=environment, text=True, stdout=subprocess.PIPE,
            cwd=checkout.CHECKOUT,
        )  # fmt: skip

    return start


@pytest.mark.parametrize("command, status", [("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM), ("true", 0)])
def test_the_exit_status_is_the_commands(
    bare_run: Callable[..., "subprocess.Popen[str]"], command: str, status: int
) -> None:
    process = bare_run("--", "sh", "-c", command)
    process.communicate()
    assert process.returncode == status


def test_the_command_sees_a_copy_of_the_checkout_and_no_variable_of_the_host(
    bare_run: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    script = f"ls; echo ${{OF_THE_HOST:-none}} $HOME; touch {MARK} root/x; mkdir -p build/a; echo made >build/a/b"
    process = bare_run("--copy-out", f"build/a:{tmp_path}/out", "--", "sh", "-c", f"cd /; cd -; {script}")
    printed, _ = process.communicate()
    assert printed.splitlines()[1:] == ["pyproject.toml", "none /root"]
    assert (tmp_path / "out/b").read_text() == "made\n"
    assert not MARK.exists()
    assert list((tmp_path / "passing").iterdir()) == []


def test_nothing_of_it_outlives_its_end(bare_run: Callable[..., "subprocess.Popen[str]"], tmp_path: Path) -> None:
    process = bare_run("--", "sh", "-c", "sleep 1000 & echo begun; wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    below = descendants(process.pid)
    assert len(below) >= 3
    process.terminate()
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in descendants(child)]
