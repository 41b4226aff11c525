"""Directories of others."""

import asyncio
from collections.abc import Iterable
from pathlib import Path


class Directories:
    """Fulfils `backends.Places`."""

    async def gone(self, directories: Iterable[str]) -> frozenset[str]:
        return await asyncio.to_thread(lambda: frozenset(each for each in directories if _is_gone(Path(each))))


def _is_gone(directory: Path) -> bool:
    """One that cannot be looked at is not, nor one whose whole file system is away."""
    try:
        directory.lstat()
    except FileNotFoundError:
        return directory.parent.is_dir()
    except OSError:
        return False
    return False
