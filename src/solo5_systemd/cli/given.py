"""The settings of a task as options of `solo5ctl run`."""

import os
from argparse import Namespace
from collections.abc import Callable
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.task.option_table import SETTINGS

T = TypeVar("T")


class Given:
    """The texts that argparse has found; implements `task.settings.Values`. A destination is a setting's name."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments

    def given(self, name: str) -> bool:
        """Return whether an option is given."""
        return bool(getattr(self._arguments, name, None))

    def one(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        """Return the value of an option; raises as `parse`."""
        text = getattr(self._arguments, name, None)
        return default if text is None else parse(text, self.shown(name))

    def each(self, name: str, parse: Callable[[str, str], T]) -> tuple[T, ...]:
        """Return the values of an option that may be repeated; raises as `parse`."""
        return tuple(parse(text, self.shown(name)) for text in getattr(self._arguments, name, None) or ())

    def checked(self, name: str, check: Callable[[], T]) -> T:  # noqa: ARG002 - one of `Values`
        """Return the result of a function, whose error names the value."""
        return check()

    def error(self, name: str, sentence: str, hint: str = "") -> InvalidRequestError:  # noqa: ARG002
        """Return the error of an option."""
        return InvalidRequestError(sentence, hint)

    def shown(self, name: str) -> str:
        """Return the option."""
        return SETTINGS[name].option

    def path(self, text: str, what: str) -> str:  # noqa: ARG002
        """Return an absolute path: lexical, since Path.resolve() would follow symbolic links."""
        return os.path.abspath(text)  # noqa: PTH100
