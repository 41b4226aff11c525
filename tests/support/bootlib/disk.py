"""The machine's disk: tree and layer as one ext4 file."""

from pathlib import Path

from . import cache, enclosure
from .report import progress

_SIZE = "8G"  # of a sparse file: room for what tests write

_FORMAT = """
lower=$1 target=$2
mkdir "$target/merged"
mount -t overlay -o "ro,lowerdir=$lower" machine "$target/merged"
truncate --size="$3" "$target/root.ext4"
mke2fs -q -F -t ext4 -O ^has_journal -L machine -d "$target/merged" "$target/root.ext4"
umount "$target/merged"
rmdir "$target/merged"
"""


def disk(tree: Path, layer: Path) -> Path:
    """Return the directory with ``root.ext4`` made of *layer* over *tree*."""

    def make(target: Path) -> None:
        progress("making the disk …")
        enclosure.run(_FORMAT, f"{layer}:{tree}", target, _SIZE, doing="making the disk")

    return cache.entry("disk", cache.digest(_FORMAT, _SIZE, cache.identity(layer.parent)), make)
