"""What the person waiting at the terminal is told, on stderr."""

import sys
from typing import Any


def progress(text: str) -> None:
    print(f"boot: {text}", file=sys.stderr, flush=True)


def not_running(name: str, state: dict[str, Any]) -> None:
    """Print systemd's verdict over a booted machine unless it is ``running``."""
    if state["state"] != "running":
        progress(f"{name} is {state['state']}; failed units: {' '.join(state['failed']) or 'none'}")
