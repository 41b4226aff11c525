"""The Debian package of this checkout, built in a tree of its own and kept by what it was built from."""

import shutil
import subprocess
from pathlib import Path

from . import cache, enclosure, trees
from .report import progress

CHECKOUT = Path(__file__).resolve().parents[3]
_PARTS = ("src", "units", "packaging", "docs", "completions", "pyproject.toml", "setup.py", "README.md")

_BUILD = """
tree=$1 work=$2
mkdir "$work/upper" "$work/overlay" "$work/merged"
mount -t overlay -o "lowerdir=$tree,upperdir=$work/upper,workdir=$work/overlay" build "$work/merged"
cp -a "$work/source" "$work/merged/build"
cd "$work/merged"
mount -t proc proc proc
mount --rbind /dev dev
chroot . sh -euc 'cd /build/solo5-systemd
    dpkg-buildpackage --ignore-builtin-builddeps --unsigned-source --unsigned-changes --build=binary
    lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs ../*.changes'
cp build/*.deb build/*.changes build/*.buildinfo "$work"
cd /
umount -R "$work/merged"
rm -r "$work/upper" "$work/overlay" "$work/merged" "$work/source"
"""


def built(release: str) -> Path:
    """Return the directory that holds the .deb, .changes and .buildinfo.

    Raises:
        MachineError: the build failed, or lintian found an error or a warning; their last lines are in the message.
    """
    tree = trees.tree(trees.BUILD, release)
    files = _files()
    names = (part for path in files for part in (str(path.relative_to(CHECKOUT)), cache.file_digest(path)))

    def make(target: Path) -> None:
        progress("building the package …")
        _copy(files, target / "source" / "solo5-systemd")
        enclosure.run(_BUILD, tree, target, doing="building the Debian package")

    return cache.entry("package", cache.digest(tree.name, _BUILD, *names), make)


def _files() -> list[Path]:
    """What belongs to the package: what git knows and what it does not know yet, without what it ignores."""
    listed = subprocess.run(
        ["git", "-C", str(CHECKOUT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_PARTS],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted(path for name in listed.stdout.split("\0") if name and (path := CHECKOUT / name).is_file())


def _copy(files: list[Path], source: Path) -> None:
    for file in files:
        target = source / file.relative_to(CHECKOUT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)  # links become what they point to
    shutil.move(source / "packaging" / "debian", source / "debian")
