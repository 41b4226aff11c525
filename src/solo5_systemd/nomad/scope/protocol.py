"""What the child that becomes a scope's tender reports to the driver: a line of JSON for each step."""

import json
from dataclasses import dataclass

from solo5_systemd.decode import Fields, json_document
from solo5_systemd.errors import BY_DBUS_NAME, HostError, Solo5Error
from solo5_systemd.nomad.events.messages import Announcement


@dataclass(frozen=True, kw_only=True)
class Begins:
    """The next step."""

    doing: str


@dataclass(frozen=True, kw_only=True)
class Enters:
    """The last one: it is in its scope, and executes the tender. Only an error can follow."""

    invocation: str
    control_group: str


Said = Begins | Announcement | Enters | Solo5Error


def encode(said: Said) -> bytes:
    """A whole line."""
    return json.dumps(_document(said)).encode() + b"\n"


def _document(said: Said) -> dict[str, object]:
    match said:
        case Begins():
            return {"begins": said.doing}
        case Announcement():
            return {"tells": said.message, "annotations": dict(said.annotations)}
        case Enters():
            return {"enters": said.control_group, "invocation": said.invocation}
        case Solo5Error():
            return {"fails": said.dbus_name, "sentence": said.sentence, "hint": said.hint}


def decode(line: bytes) -> Said:
    """Read what `encode` wrote.

    Raises:
        HostError: it is something else.
    """
    try:
        return _said(Fields(json_document(line, "the report")))
    except (KeyError, Solo5Error) as error:
        raise unforeseen() from error


def _said(fields: Fields) -> Said:
    if fields.has("begins"):
        return Begins(doing=fields.text("begins"))
    if fields.has("tells"):
        notes = fields.table("annotations")
        return Announcement(message=fields.text("tells"), annotations={key: notes.text(key) for key in notes})
    if fields.has("enters"):
        return Enters(control_group=fields.text("enters"), invocation=fields.text("invocation"))
    return BY_DBUS_NAME[fields.text("fails")](fields.text("sentence"), fields.text("hint"))


def unforeseen() -> HostError:
    """It ended, or said something, that is no report."""
    return HostError("the child that was to become the task's tender failed in a way that nobody foresaw.")
