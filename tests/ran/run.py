"""The record of one run of pytest, and the record of the tests that it is of."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Ending(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Attributes:
    digest: of the tests' files.
    collected: the ids of all tests that were found, also of those that -m and -k left out, but not of those
        marked `long`.
    endings: how those ended that ran.
    lines: of each file of the tests, the lines whose assertion has held.
    """

    digest: str
    collected: Sequence[str]
    endings: Mapping[str, Ending]
    lines: Mapping[str, frozenset[int]]


def encode(run: Run) -> str:
    lines = {file: sorted(numbers) for file, numbers in run.lines.items()}
    return json.dumps({"digest": run.digest, "collected": run.collected, "endings": run.endings, "lines": lines})


def decode(text: str) -> Run:
    fields = json.loads(text)
    return Run(
        digest=fields["digest"],
        collected=tuple(fields["collected"]),
        endings={test: Ending(ending) for test, ending in fields["endings"].items()},
        lines={file: frozenset(numbers) for file, numbers in fields["lines"].items()},
    )


def digest(directory: Path) -> str:
    """Return a hash of all Python files below a directory: a record is of these tests alone."""
    found = hashlib.sha256()
    for file in sorted(directory.rglob("*.py")):
        found.update(f"{file.relative_to(directory)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()
