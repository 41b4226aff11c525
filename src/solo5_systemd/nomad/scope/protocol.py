"""The report of the child that becomes a scope's tender, to the driver: one line of JSON for each step."""

import json
from dataclasses import dataclass

from solo5_systemd.decode import Fields, json_document
from solo5_systemd.errors import BY_DBUS_NAME, HostError, Solo5Error
from solo5_systemd.nomad.events.messages import TaskEvent


@dataclass(frozen=True, kw_only=True)
class StepBegun:
    """The next step begins."""

    doing: str


@dataclass(frozen=True, kw_only=True)
class ScopeEntered:
    """The child is in its scope, and executes the tender next. Only an error can follow."""

    invocation: str
    control_group: str


ReportLine = StepBegun | TaskEvent | ScopeEntered | Solo5Error


def encode(line: ReportLine) -> bytes:
    """Return a line as JSON, newline included."""
    return json.dumps(_document(line)).encode() + b"\n"


def _document(line: ReportLine) -> dict[str, object]:
    match line:
        case StepBegun():
            return {"begins": line.doing}
        case TaskEvent():
            return {"tells": line.message, "annotations": dict(line.annotations)}
        case ScopeEntered():
            return {"enters": line.control_group, "invocation": line.invocation}
        case Solo5Error():
            return {"fails": line.dbus_name, "sentence": line.sentence, "hint": line.hint}


def decode(line: bytes) -> ReportLine:
    """Parse the result of `encode`.

    Raises:
        HostError: the line is malformed.
    """
    try:
        return _report_line(Fields(json_document(line, "the report")))
    except (KeyError, Solo5Error) as error:
        raise no_report() from error


def _report_line(fields: Fields) -> ReportLine:
    if fields.has("begins"):
        return StepBegun(doing=fields.text("begins"))
    if fields.has("tells"):
        notes = fields.table("annotations")
        return TaskEvent(message=fields.text("tells"), annotations={key: notes.text(key) for key in notes})
    if fields.has("enters"):
        return ScopeEntered(control_group=fields.text("enters"), invocation=fields.text("invocation"))
    return BY_DBUS_NAME[fields.text("fails")](fields.text("sentence"), fields.text("hint"))


def no_report() -> HostError:
    """Return the error of a child whose report is malformed or incomplete."""
    return HostError("the child process of the task's tender ended without a valid report.")
