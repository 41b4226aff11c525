"""Errors of system calls."""

import os
from collections.abc import Callable
from typing import NoReturn


def failing(number: int) -> Callable[..., NoReturn]:
    """Return a function that raises OSError with an errno, in the place of a system call."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail
