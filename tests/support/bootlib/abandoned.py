"""Names that carry the process they belong to, so that what a killed process left behind can be told and removed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "test-machine-"


def name() -> str:
    return f"{PREFIX}{os.getpid()}"


def abandoned(folder: Path) -> list[Path]:
    """Return the entries of *folder* whose process is no more."""
    return [path for path in folder.glob(f"{PREFIX}*") if not Path("/proc", path.name.split("-")[2]).exists()]


@contextmanager
def run_directory() -> Iterator[Path]:
    """Give a directory for the passing files of one machine."""
    for path in abandoned(Path(tempfile.gettempdir())):
        shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{name()}-") as run:
        yield Path(run)
