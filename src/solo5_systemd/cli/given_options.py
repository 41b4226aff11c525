"""The settings of a task as options of `solo5ctl run`."""

import os
from argparse import Namespace
from collections.abc import Iterator
from typing import TypeVar

from solo5_systemd.task.option_table import SETTINGS
from solo5_systemd.task.settings import Parse, Values

T = TypeVar("T")


class Given(Values):
    """The texts that argparse has found. A destination is a setting's name."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments

    def given(self, name: str) -> bool:
        """Return whether an option is given."""
        return bool(getattr(self._arguments, name, None))

    def parsed(self, name: str, parse: Parse[T]) -> Iterator[T]:
        """Yield the values of an option; raises as `parse`."""
        found = getattr(self._arguments, name, None)
        texts = [found] if isinstance(found, str) else found or ()
        return (parse(text, self.shown(name)) for text in texts)

    def shown(self, name: str) -> str:
        """Return the option."""
        return SETTINGS[name].option

    def path(self, text: str, what: str) -> str:  # noqa: ARG002
        """Return an absolute path: lexical, since Path.resolve() would follow symbolic links."""
        return os.path.abspath(text)  # noqa: PTH100
