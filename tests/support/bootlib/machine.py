"""What is wanted of a machine, and what a booted one is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The parts of a machine; memory in MiB. One that ``reboots`` boots again instead of ending."""

    tree: Path
    layer: Path
    release: str
    memory: int
    cpus: int
    reboots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A booted machine. ``state`` is systemd's verdict: ``{"state": "running", "failed": []}``."""

    session: Session
    console: Path
    state: dict[str, Any]
