"""What the person waiting at the terminal is told, on stderr."""

import sys


def progress(text: str) -> None:
    print(f"boot: {text}", file=sys.stderr, flush=True)
