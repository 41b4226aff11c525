"""Jobs of systemd over a real bus: each caller gets a result."""

import asyncio
import os
import tempfile

import pytest
from tests.contract.bus.fake_systemd import FakeSystemd, Report
from tests.contract.bus.given import TRANSIENT, UNIT, WEB, service, start
from tests.support.fakes.background import yields

from solo5_systemd.base.errors import HostError
from solo5_systemd.bus import jobs as jobs_module
from solo5_systemd.bus import manager as manager_module
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.manager import Manager
from solo5_systemd.bus.peers import MANAGER_PATH, JobFailedError
from solo5_systemd.dbus.messages import Variant
from solo5_systemd.task.properties import Property, TransientUnit
from solo5_systemd.unit.state import ActiveState, UnitState

# --- jobs ----------------------------------------------------------------------------------------------------


async def test_a_start_is_one_call_with_every_property_typed_and_every_file(
    systemd: FakeSystemd, manager: Manager
) -> None:
    properties = (
        Property("ExecStart", "a(sasb)", [("/bin/x", ["/bin/x", "a"], False)]),
        Property("SystemCallFilter", "(bas)", (True, ["read"])),
        Property("AllowedCPUs", "ay", b"\x03"),
        Property("LogExtraFields", "aay", [b"A=b"]),
        Property("IPAddressDeny", "a(iayu)", [(2, bytes(4), 0)]),
    )
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        await manager.start(TransientUnit(name=UNIT, properties=properties), stdin.fileno(), stderr.fileno())
        assert systemd.files == [(os.fstat(f.fileno()).st_dev, os.fstat(f.fileno()).st_ino) for f in (stdin, stderr)]
    ((name, mode, sent, auxiliary),) = systemd.called("StartTransientUnit")
    assert (name, mode, auxiliary) == (UNIT, "fail", [])
    assert [(key, value.signature, value.value) for key, value in sent] == [
        ("ExecStart", "a(sasb)", [["/bin/x", ["/bin/x", "a"], False]]),
        ("SystemCallFilter", "(bas)", [True, ["read"]]),
        ("AllowedCPUs", "ay", b"\x03"),
        ("LogExtraFields", "aay", [b"A=b"]),
        ("IPAddressDeny", "a(iayu)", [[2, bytes(4), 0]]),
        ("StandardInputFileDescriptor", "h", 0),
        ("StandardErrorFileDescriptor", "h", 1),
    ]


async def test_a_start_tells_what_has_begun_without_a_listing(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service(
        invocation=7,
        MainPID=Variant("u", 42),
        ExecMainStartTimestamp=Variant("t", 1000),
        ControlGroup=Variant("s", "/solo5.slice/x"),
    )
    assert await manager.start(TRANSIENT) == UnitState(
        task=WEB,
        unit=UNIT,
        active=ActiveState.ACTIVE,
        invocation="07" * 16,
        main_pid=42,
        started=1000,
        control_group="/solo5.slice/x",
        log_fields={},
    )
    assert [member for member, _ in systemd.calls] == ["StartTransientUnit"]


DESTRUCTIVE = "org.freedesktop.systemd1.TransactionIsDestructive"


async def test_a_start_waits_for_a_stop_that_it_would_cancel(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.units[UNIT] = service()
    systemd.errors["StartTransientUnit"] = DESTRUCTIVE
    systemd.passing.add("StartTransientUnit")
    assert (await manager.start(TRANSIENT)).invocation == "01" * 16
    assert len(systemd.called("StartTransientUnit")) == 2


async def test_a_start_that_would_cancel_a_shutdown_is_refused(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "RETRY_INTERVAL_S", 0.001)
    systemd.errors["StartTransientUnit"] = DESTRUCTIVE
    with pytest.raises(HostError, match="TransactionIsDestructive: the reason"):
        await manager.start(TRANSIENT)


async def test_a_slice_is_started_and_then_confined_until_the_next_boot(systemd: FakeSystemd, manager: Manager) -> None:
    await manager.set_properties("solo5-shared.slice", [Property("AllowedCPUs", "ay", b"\x03")])
    (start_unit, start_body), (set_properties, (name, runtime, ((key, value),))) = systemd.calls
    assert (start_unit, start_body) == ("StartUnit", ["solo5-shared.slice", "replace"])
    assert (set_properties, name, runtime) == ("SetUnitProperties", "solo5-shared.slice", True)
    assert (key, value.signature, value.value) == ("AllowedCPUs", "ay", b"\x03")


async def test_a_slice_that_does_not_start_is_not_confined(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.result = "failed"
    with pytest.raises(HostError, match="solo5-shared.slice did not start: job result 'failed'"):
        await manager.set_properties("solo5-shared.slice", [])
    assert not systemd.called("SetUnitProperties")


@pytest.mark.parametrize(("report", "result"), [(Report.BEFORE, "failed"), (Report.AFTER, "timeout")])
async def test_a_jobs_result_is_known_whether_it_comes_before_or_after_the_reply(
    systemd: FakeSystemd, manager: Manager, report: Report, result: str
) -> None:
    systemd.report, systemd.result = report, result
    await manager.stop(UNIT)
    with pytest.raises(JobFailedError) as caught:
        await start(manager)
    assert (caught.value.unit, caught.value.result) == (UNIT, result)


@pytest.mark.parametrize("report", [Report.BEFORE, Report.AFTER])
async def test_fifty_jobs_at_once_each_get_their_own_end(
    systemd: FakeSystemd, manager: Manager, report: Report
) -> None:
    systemd.report = report
    units = [TransientUnit(name=f"solo5-task-t{i}.service", properties=()) for i in range(50)]
    await asyncio.gather(*(manager.start(unit) for unit in units))
    assert sorted(body[0] for body in systemd.called("StartTransientUnit")) == sorted(unit.name for unit in units)


@pytest.mark.parametrize("report", [Report.BEFORE, Report.AFTER])
async def test_two_stops_that_systemd_merges_into_one_job_both_end(
    systemd: FakeSystemd, manager: Manager, report: Report
) -> None:
    systemd.report, systemd.one_job = report, True
    await asyncio.gather(manager.stop(UNIT), manager.stop(UNIT))
    assert systemd.called("StopUnit") == [[UNIT, "replace"]] * 2, "in the place of a start that is under way"


async def test_a_job_whose_end_is_never_reported_is_given_up_and_the_next_works(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "JOB_TIMEOUT_S", 0.05)
    systemd.report = Report.NEVER
    with pytest.raises(HostError, match="systemd did not finish StopUnit within 0 seconds"):
        await manager.stop(UNIT)
    monkeypatch.setattr(jobs_module, "JOB_TIMEOUT_S", 5)
    systemd.report = Report.AFTER
    await manager.stop(UNIT)


async def test_a_cancelled_wait_for_a_job_disturbs_no_other(systemd: FakeSystemd, manager: Manager) -> None:
    systemd.report, systemd.one_job = Report.NEVER, True
    waiting = [asyncio.ensure_future(manager.stop(UNIT)) for _ in range(2)]
    await systemd.until_called("StopUnit", 2)
    await manager.states()  # its answer comes after theirs
    waiting[0].cancel()
    systemd.finish(f"{MANAGER_PATH}/job/1")
    await waiting[1]
    assert waiting[0].cancelled()


async def test_the_match_rule_lasts_while_there_are_jobs_and_not_much_longer(
    systemd: FakeSystemd, manager: Manager, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await match_rules(connection)
    monkeypatch.setattr(jobs_module, "LINGER_S", 0)
    for _ in range(2):
        await manager.stop(UNIT)
        while await match_rules(connection) != before:
            await yields(1)
    monkeypatch.setattr(jobs_module, "LINGER_S", 60)
    await start(manager)
    assert await match_rules(connection) == before + 1


async def match_rules(connection: Connection) -> int:
    """Return the number of match rules of this connection (org.freedesktop.DBus.Debug.Stats)."""
    (stats,) = await connection.call(
        "org.freedesktop.DBus",
        "/org/freedesktop/DBus",
        "org.freedesktop.DBus.Debug.Stats",
        "GetConnectionStats",
        "s",
        [(await connection.connect()).unique_name],
    )
    return int(stats["MatchRules"].value)


async def test_a_job_during_the_removal_of_the_match_rule_gets_its_result(
    systemd: FakeSystemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "LINGER_S", 0)
    for _ in range(50):
        await manager.stop(UNIT)
        await yields(1)
    await manager.names()
    await manager.names()  # the reply to the last RemoveMatch comes before
    assert len(systemd.called("StopUnit")) == 50
