"""Which units of a task are active, by PID 1's links."""

from pathlib import Path
from typing import Any

from solo5_systemd.base.names import TaskName
from solo5_systemd.networkd.task_units import TaskUnits


def test_a_task_is_updated_as_long_as_the_unit_of_its_update_is_active(tmp_path: Path) -> None:
    bus: Any = None
    units = TaskUnits(bus, tmp_path)
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
