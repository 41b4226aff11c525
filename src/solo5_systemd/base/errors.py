"""The errors that an operator sees.

An error is one sentence with the value, what was expected and what to do; an optional hint has a command to run. Its
class determines the exit status of `solo5ctl` and the name of the D-Bus error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from solo5_systemd.base.sanitize import printable

MAX_SENTENCE, MAX_HINT = 2000, 1000
"""Characters. A quoted value may be of any length; a long sentence loses its middle and keeps what was expected."""


class Solo5Error(Exception):
    """The base class: an error with an explanation, and maybe a hint, what to do or run next.

    Each is one printable line of bounded length, since errors reach terminals, logs and events.
    """

    exit_status: ClassVar[int] = 125
    """Exit status of `solo5ctl`, as podman's: 125 an error of solo5ctl, 126 cannot be executed, 127 not found."""

    dbus_name: ClassVar[str] = "org.solo5.Error.Failed"

    def __init__(self, sentence: str, hint: str = "") -> None:
        self.sentence = _line(sentence, MAX_SENTENCE)
        self.hint = _line(hint, MAX_HINT)
        super().__init__(self.sentence)

    def __str__(self) -> str:
        return f"{self.sentence} {self.hint}".rstrip()


def _line(text: str, most: int) -> str:
    """Return text as one printable line of at most `most` characters."""
    return _elide(printable(_elide(text, most)), most)


def _elide(text: str, most: int) -> str:
    """Return text with `…` for its middle if it is longer than `most` characters."""
    head = most * 2 // 3
    return text if len(text) <= most else f"{text[:head]}…{text[head + 1 - most :]}"


class InvalidRequestError(Solo5Error):
    """The request can never succeed as written: a malformed value, a name out of bounds."""

    dbus_name = "org.solo5.Error.InvalidRequest"


class SettingsError(Solo5Error):
    """A file below /etc/solo5 is invalid."""

    dbus_name = "org.solo5.Error.Settings"


def unquoted(place: str, sentence: str) -> SettingsError:
    """Return the error of a file that not every user may read: units, journal and events show it to those who may not.

    Args:
        place: file, line and key.
        sentence: of the error, with values; only what follows “: expected” is kept.
    """
    _, expected, form = sentence.rpartition(": expected ")
    return SettingsError(
        f"{place} is not valid{expected}{form if expected else '.'}",
        "The value is not shown, since not every user may read the file.",
    )


class ImageError(Solo5Error):
    """The image is not a unikernel that this host can run."""

    exit_status = 126
    dbus_name = "org.solo5.Error.Image"


class NotFoundError(Solo5Error):
    """A file, a tender or an image does not exist."""

    exit_status = 127
    dbus_name = "org.solo5.Error.NotFound"


class NoSuchTaskError(Solo5Error):
    """No task has this name."""

    dbus_name = "org.solo5.Error.NoSuchTask"


class TakenError(Solo5Error):
    """A name, address, port or disk is in use; a later attempt may succeed."""

    dbus_name = "org.solo5.Error.Taken"


class HostError(Solo5Error):
    """The host lacks something: a device, a service, space, a permission."""

    dbus_name = "org.solo5.Error.Host"


class StoreFullError(HostError):
    """The image store is full; unused images can be removed."""

    dbus_name = "org.solo5.Error.StoreFull"


class DependencyError(HostError):
    """A module, library, program or socket that this package requires is missing or unusable."""

    dbus_name = "org.solo5.Error.Dependency"


class StartError(Solo5Error):
    """The unit was created and did not start; everything that was created for it has been removed."""

    exit_status = 126
    dbus_name = "org.solo5.Error.Start"


BY_DBUS_NAME: dict[str, type[Solo5Error]] = {
    each.dbus_name: each for each in vars().copy().values() if isinstance(each, type) and issubclass(each, Solo5Error)
}


@contextmanager
def host_errors(what: str, hint: str = "") -> Iterator[None]:
    """Turn an OSError of the block into a HostError: `what` cannot be done, and the error's text."""
    try:
        yield
    except OSError as error:
        raise HostError(f"{what}: {error.strerror or error}.", hint) from error


@contextmanager
def located(where: str, kind: type[Solo5Error] = InvalidRequestError) -> Iterator[None]:
    """Put the place of a value before the sentence of an InvalidRequestError of the block; `kind`: its class then."""
    try:
        yield
    except InvalidRequestError as error:
        raise kind(f"{where}: {error.sentence}", error.hint) from error
