"""This checkout: the files that git knows, and those that it does not know yet, without what it ignores."""

import shutil
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]


def files(*parts: str) -> list[Path]:
    """Return the files under *parts*, or all of them."""
    listed = subprocess.run(
        ["git", "-C", str(CHECKOUT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *parts],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted(path for name in listed.stdout.split("\0") if name and (path := CHECKOUT / name).is_file())


def copy(paths: list[Path], target: Path, *, links: bool = False) -> None:
    """Copy *paths* to the same places below *target*; symbolic links become what they point to, unless *links*."""
    for path in paths:
        place = target / path.relative_to(CHECKOUT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place, follow_symlinks=not links)
