"""How much is measured: enough for a figure, or with BENCH_SHORT=1 as little as shows that it can be measured."""

import os
from typing import TypeVar

SHORT = os.environ.get("BENCH_SHORT") == "1"
_T = TypeVar("_T")


def extent(whole: _T, short: _T) -> _T:
    """Return one of the two values."""
    return short if SHORT else whole
