"""The settings of a task as options of a job."""

from collections.abc import Callable
from typing import TypeVar

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.task.option_table import SETTINGS

T = TypeVar("T")


class Shared:
    """The options of a job that are those of `solo5ctl run`; implements `task.settings.Values`."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def given(self, name: str) -> bool:
        """Return whether the job sets an option, perhaps to an empty list."""
        return self._fields.has(SETTINGS[name].job)

    def one(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        """Return the value of an option; raises InvalidRequestError where it is invalid."""
        if not self.given(name):
            return default
        text = self._fields.text(SETTINGS[name].job)
        return self.checked(name, lambda: parse(text, self.shown(name)))

    def each(self, name: str, parse: Callable[[str, str], T]) -> tuple[T, ...]:
        """Return the values of a list; raises InvalidRequestError where one is invalid."""
        texts = self._fields.texts(SETTINGS[name].job, ())
        return tuple(self.checked(name, lambda text=text: parse(text, self.shown(name))) for text in texts)  # type: ignore[misc]

    def checked(self, name: str, check: Callable[[], T]) -> T:
        """Return the result of a function; its error begins with the option."""
        try:
            return check()
        except Solo5Error as error:
            if error.sentence.startswith("config."):
                raise
            raise self.error(name, f"{self.shown(name)}: {error.sentence}", error.hint) from error

    def error(self, name: str, sentence: str, hint: str = "") -> InvalidRequestError:  # noqa: ARG002
        """Return the error of an option."""
        return InvalidRequestError(sentence, hint)

    def shown(self, name: str) -> str:
        """Return the option's path in the job; empty: it has none."""
        job = SETTINGS[name].job
        return f"config.{job}" if job else ""

    def path(self, text: str, what: str) -> str:  # noqa: ARG002
        """Return the path as the job has it; the task's directory is not known here."""
        return text
