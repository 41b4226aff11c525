"""The Debian package of this checkout, built in a tree of its own and kept by what it was built from."""

import shutil
from pathlib import Path

from . import cache, checkout, enclosure, trees
from .checkout import CHECKOUT
from .report import lasting

_SECONDS = 12
_PARTS = ("src", "units", "packaging", "docs", "completions", "pyproject.toml", "setup.py", "README.md", "SECURITY.md")

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
umount -R --lazy "$work/merged"  # a process of lintian may still be ending
rm -r "$work/upper" "$work/overlay" "$work/merged" "$work/source"
"""


def built(release: str) -> Path:
    """Return the directory that holds the .deb, .changes and .buildinfo.

    Raises:
        MachineError: the build failed, or lintian found an error or a warning; their last lines are in the message.
    """
    tree = trees.tree(trees.BUILD, release)
    files = checkout.files(*_PARTS)
    names = (part for path in files for part in (str(path.relative_to(CHECKOUT)), cache.file_digest(path)))

    def make(target: Path) -> None:
        source = target / "source" / "solo5-systemd"
        checkout.copy(files, source)
        shutil.move(source / "packaging" / "debian", source / "debian")
        with lasting("building the package", _SECONDS):
            enclosure.run(_BUILD, tree, target, doing="building the Debian package")

    return cache.entry("package", cache.digest(tree.name, _BUILD, *names), make)
