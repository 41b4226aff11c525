"""The report lines of a scope's child are decoded as they were encoded; anything else is an error."""

import pytest

from solo5_systemd.errors import BY_DBUS_NAME, HostError, TakenError
from solo5_systemd.nomad.events.messages import TaskEvent
from solo5_systemd.nomad.scope.protocol import ReportLine, ScopeEntered, StepBegun, decode, encode


@pytest.mark.parametrize(
    "reported",
    [
        StepBegun(doing="reserving addresses"),
        TaskEvent(message="NIC service has “10.89.0.2”\nand more", annotations={"nic.service.mac": "02:00"}),
        TaskEvent(message="plain"),
        ScopeEntered(invocation="ab" * 16, control_group="/solo5.slice/a.scope"),
    ],
)
def test_a_step_is_one_line_and_arrives_as_it_was(reported: ReportLine) -> None:
    line = encode(reported)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert decode(line) == reported


@pytest.mark.parametrize("kind", BY_DBUS_NAME.values())
def test_an_error_arrives_with_its_class(kind: type[TakenError]) -> None:
    decoded = decode(encode(kind("port 80 is taken.", "Choose another.")))
    assert isinstance(decoded, kind)
    assert (decoded.sentence, decoded.hint) == ("port 80 is taken.", "Choose another.")


@pytest.mark.parametrize(
    "line",
    [
        b"oops",
        b"\xff",
        b"{}",
        b"[1]",
        b"3",
        b'{"begins": 3}',
        b'{"tells": "a", "annotations": {"b": 1}}',
        b'{"enters": "/a"}',
        b'{"fails": "x", "sentence": "", "hint": ""}',
    ],
)
def test_anything_else_is_a_failure_that_nobody_foresaw(line: bytes) -> None:
    with pytest.raises(HostError, match="ended without a valid report"):
        decode(line)
