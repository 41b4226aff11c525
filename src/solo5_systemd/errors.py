"""Every error that a person may meet.

An error is one sentence that names the value, what was expected and what to do; an optional hint says what to
type next. The class says who can do something about it, and from the class each front door derives its own
answer once: an exit status in `cli`, a D-Bus error name in `networkd`.
"""

from typing import ClassVar

from solo5_systemd.text import visible

LONGEST_SENTENCE, LONGEST_HINT = 2000, 1000
"""Characters. A sentence quotes what was wrong, and that may be of any length; it begins with what, and ends with what
was expected."""


class Solo5Error(Exception):
    """The root: something that we can explain.

    Whatever a sentence quotes, it is one printable line of bounded length: errors reach terminals, logs and events.

    Attributes:
        sentence: one sentence, complete by itself.
        hint: what to do or type next; empty where the sentence says it already.
    """

    exit_status: ClassVar[int] = 125
    """`solo5ctl`'s exit status, in podman's convention: 125 ours, 126 cannot be run, 127 not found."""

    dbus_name: ClassVar[str] = "org.solo5.Error.Failed"

    def __init__(self, sentence: str, hint: str = "") -> None:
        self.sentence = _line(sentence, LONGEST_SENTENCE)
        self.hint = _line(hint, LONGEST_HINT)
        super().__init__(self.sentence)

    def __str__(self) -> str:
        return f"{self.sentence} {self.hint}".rstrip()


def _line(text: str, most: int) -> str:
    """Return text as one printable line, its middle left out where it is long."""
    return _ends(visible(_ends(text, most)), most)


def _ends(text: str, most: int) -> str:
    head = most * 2 // 3
    return text if len(text) <= most else f"{text[:head]}…{text[head + 1 - most :]}"


class InvalidRequestError(Solo5Error):
    """What was asked for can never work as written: a malformed value, a name out of bounds."""

    dbus_name = "org.solo5.Error.InvalidRequest"


class SettingsError(Solo5Error):
    """A file below /etc/solo5 is wrong."""

    dbus_name = "org.solo5.Error.Settings"


class ImageError(Solo5Error):
    """The image is not a unikernel that can run here."""

    exit_status = 126
    dbus_name = "org.solo5.Error.Image"


class NotFoundError(Solo5Error):
    """A file, a tender or an image is not there."""

    exit_status = 127
    dbus_name = "org.solo5.Error.NotFound"


class NoSuchTaskError(Solo5Error):
    """No task has this name."""

    dbus_name = "org.solo5.Error.NoSuchTask"


class TakenError(Solo5Error):
    """A name, address, port or disk is in use by somebody else; another time it may be free."""

    dbus_name = "org.solo5.Error.Taken"


class HostError(Solo5Error):
    """This machine lacks something: a device, a service, space, permission."""

    dbus_name = "org.solo5.Error.Host"


class StoreFullError(HostError):
    """The image store has no room for an image; unused ones may be removed."""

    dbus_name = "org.solo5.Error.StoreFull"


class DependencyError(HostError):
    """A module, library, program or socket that this package depends on is missing."""

    dbus_name = "org.solo5.Error.Dependency"


class StartError(Solo5Error):
    """The unit was made and did not start; everything made for it is gone again."""

    exit_status = 126
    dbus_name = "org.solo5.Error.Start"


BY_DBUS_NAME: dict[str, type[Solo5Error]] = {
    cls.dbus_name: cls
    for cls in (
        Solo5Error,
        InvalidRequestError,
        SettingsError,
        ImageError,
        NotFoundError,
        NoSuchTaskError,
        TakenError,
        HostError,
        DependencyError,
        StoreFullError,
        StartError,
    )
}
