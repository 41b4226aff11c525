"""Text that a unit file would not reproduce is never sent to PID 1."""

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd
from tests.contract.bus.given import UNIT

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.bus.manager import Manager
from solo5_systemd.dbus.messages import Variant
from solo5_systemd.task.properties import Property, TransientUnit

HOSTILE = [
    Property("Description", "s", "x\n[Service]\nExecStopPost=+/x"),
    Property("Description", "s", "x\r"),
    Property("Description", "s", "x\u2028"),
    Property("Description", "s", "x\x85"),
    Property("Description", "s", "x\\"),
    Property("Description", "s", " x"),
    Property("Environment", "as", ["A=b", "C=\n"]),
    Property("ExecStart", "a(sasb)", [("/x", ["/x", "a\nb"], False)]),
    Property("LogExtraFields", "aay", [b"A=b", b"C=\nd"]),
    Property("LogExtraFields", "aay", [b"A=\xff"]),
    Property("IOReadBandwidthMax", "a(st)", [("/dev/sda\nExecStopPost=+/x", 1)]),
    Property("IOReadBandwidthMax", "a(st)", [("/dev/a b", 1)]),
    Property("IOReadBandwidthMax", "a(st)", [("/dev/%n", 1)]),
    Property("DeviceAllow", "a(ss)", [("/dev/a b", "rw")]),
    Property("BindPaths", "a(ssbt)", [("/srv/a\nb", "/run/x", False, 0)]),
    Property("NewInTheNextVersion", "v", Variant("as", ["a\n"])),
    Property("New\nOne", "s", "x"),
]


@pytest.mark.parametrize("entry", HOSTILE, ids=lambda entry: f"{entry.name} {entry.value}"[:40])
async def test_a_text_that_a_unit_file_reads_otherwise_does_not_leave(
    systemd: FakeSystemd, manager: Manager, entry: Property
) -> None:
    with pytest.raises(InvalidRequestError, match="^unit property .* has .*: expected text that a unit file") as caught:
        await manager.start(TransientUnit(name=UNIT, properties=(entry,)))
    assert caught.value.sentence.isprintable()
    with pytest.raises(InvalidRequestError):
        await manager.set_properties("solo5-shared.slice", [entry])
    assert not systemd.called("StartTransientUnit") + systemd.called("SetUnitProperties")
