"""Answers of the kernel that no file in memory gives."""

import os
from collections.abc import Callable
from typing import NoReturn


def failing(number: int) -> Callable[..., NoReturn]:
    """What fails with this errno, in place of a system call."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail
