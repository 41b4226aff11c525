"""Which units of a task are active, by PID 1's links."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from solo5_systemd.base.names import TaskName
from solo5_systemd.dbus.messages import Message, MessageType
from solo5_systemd.networkd import task_units
from solo5_systemd.networkd.task_units import TaskUnits


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_units, "UNITS", str(tmp_path))


def test_a_task_is_updated_as_long_as_the_unit_of_its_update_is_active(tmp_path: Path) -> None:
    bus: Any = None
    units = TaskUnits(bus)
    link = tmp_path / "invocation:solo5-update@web.service"
    try:
        assert not units.is_updated(TaskName("web"))
        link.symlink_to("f" * 32)
        assert (units.is_updated(TaskName("web")), units.is_updated(TaskName("we"))) == (True, False)
        assert not units.has_run(TaskName("web"))
        link.unlink()
        assert not units.is_updated(TaskName("web"))
    finally:
        units.close()


def test_a_declared_task_whose_name_begins_with_a_digit_has_its_properties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Message] = []

    class Bus:
        async def call(self, message: Message) -> Message:
            called.append(message)
            raise OSError

    monkeypatch.setattr(task_units, "units_of", lambda task: (f"{task}.service",))
    bus: Any = Bus()
    (tmp_path / "invocation:1web.service").symlink_to("f" * 32)
    units = TaskUnits(bus)
    try:
        assert asyncio.run(units.processor_time(TaskName("1web"))) is None
    finally:
        units.close()
    assert [each.path for each in called] == ["/org/freedesktop/systemd1/unit/_31web_2eservice"]


@pytest.mark.parametrize(
    ("states", "over"),
    [
        (("inactive", "inactive"), True),
        (("inactive", "deactivating"), True),
        (("inactive", "active"), False),
        (("active", "active"), False),
    ],
)
def test_a_declared_task_is_not_over_while_its_preparation_serves_a_start_as_it_is(
    states: tuple[str, str], over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that cancels the stop of the preparation does not attach the network again."""
    own = dict(zip(("web.service", "solo5-prepare@web.service"), states, strict=True))

    class Bus:
        async def call(self, message: Message) -> Message:
            [names] = message.body
            rows = [[name, "", "loaded", own.get(name, "inactive"), "", "", "/", 0, "", "/"] for name in names]
            return Message(
                message_type=MessageType.METHOD_RETURN, reply_serial=1, signature="a(ssssssouso)", body=[rows]
            )

    monkeypatch.setattr(task_units, "units_of", lambda task: (f"{task}.service",))
    monkeypatch.setattr(task_units, "is_declared", lambda task: task == "web")
    bus: Any = Bus()
    units = TaskUnits(bus)
    try:
        found = asyncio.run(units.over([TaskName("web"), TaskName("other")]))
    finally:
        units.close()
    assert found == ({"web", "other"} if over else {"other"})
