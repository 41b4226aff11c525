"""A bare Debian machine without a boot: git, make, and what `tests/machine/setup` installs there.

A command runs in a copy of this checkout there, as root, in an overlay in memory. What it keeps in ~/.cache is kept.
"""

import argparse
import shutil
import subprocess
from pathlib import Path

from . import cache, checkout, enclosure, trees
from .abandoned import run_directory
from .carried import Carried, carried
from .errors import status_of

HOME = Path("/root")
COPY = Path("/srv/checkout")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_RUN = """
tree=$1 run=$2 home=$3
shift 3
mount -t tmpfs -o mode=755 bare "$run/private"
cd "$run/private"
mkdir upper work root
mount -t overlay -o "lowerdir=$tree,upperdir=upper,workdir=work" bare root
cd root
cp --dereference /etc/resolv.conf /etc/hosts etc
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev
mkdir -p root/.cache srv/checkout
mount --bind "$home" root/.cache
mount --bind "$run/checkout" srv/checkout
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "./$2"; else mkdir -p "./${2%/*}"; [ -e "./$2" ] || : > "./$2"; fi
    mount --bind "$1" "./$2"
    mount -o remount,bind,ro "./$2"
    shift 2
done
shift
status=0
chroot . "$@" || status=$?  # not executed: PID 1 is no parent that programs expect
exit $status
"""


def main(words: list[str]) -> int:
    wanted = _parse(words)
    return status_of(lambda: _run(wanted))


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bare", description=__doc__, allow_abbrev=False)
    parser.add_argument("--release", default="trixie", help="Debian release (default: trixie)")
    parser.add_argument(
        "--copy-out", metavar="FOLDER:HOST", action="append", default=[], type=_copy_out,
        help="copy a folder of the checkout's copy to HOST after COMMAND, if it is there; repeatable",
    )  # fmt: skip
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what to run; a program and its arguments")
    return parser.parse_args(words)


def _copy_out(text: str) -> tuple[Path, Path]:
    folder, _, host = text.partition(":")
    if not host or Path(folder).is_absolute():
        raise argparse.ArgumentTypeError(f"“{text}” is not FOLDER:HOST with a relative FOLDER")
    return Path(folder), Path(host)


def _run(wanted: argparse.Namespace) -> int:
    tree = trees.tree(trees.BARE, wanted.release)
    kept = cache.entry("home", cache.digest(tree.name), lambda _: None)
    with cache.in_use(tree, kept), run_directory() as run:
        (run / "private").mkdir()
        checkout.copy(checkout.files(), run / "checkout", links=True)
        status = _enclosed(_command(tree, run, kept, carried(HOME), wanted.command))
        for folder, host in wanted.copy_out:
            if (made := run / "checkout" / folder).is_dir():
                shutil.copytree(made, host, dirs_exist_ok=True)
    return status


def _command(tree: Path, run: Path, kept: Path, machine: Carried, argv: list[str]) -> list[str]:
    variables = {"LANG": "C.UTF-8", **machine.variables, "PATH": _PATH, "HOME": str(HOME), "USER": "root"}
    binds = [str(path) for pair in machine.paths for path in pair]
    settings = [f"{name}={value}" for name, value in variables.items()]
    return enclosure.command(
        _RUN, tree, run, kept, *binds, "--", "env", "-i", f"--chdir={COPY}", *settings, *argv
    )  # fmt: skip


def _enclosed(command: list[str]) -> int:
    process = subprocess.Popen([*enclosure.UNDER_US, *command], stdin=subprocess.DEVNULL)
    try:
        code = process.wait()
    finally:
        enclosure.end(process)
    return 128 - code if code < 0 else code
