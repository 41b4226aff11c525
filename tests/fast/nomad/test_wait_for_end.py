"""The wait for a task's end while PID 1 or the bus is not reachable."""

import logging
from typing import NoReturn

import pytest
from tests.support.fakes.background import Background

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName, UnitKind
from solo5_systemd.nomad import wait as wait_module
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.handle import DriverState
from solo5_systemd.nomad.option_values import Logging
from solo5_systemd.nomad.scope_tenders import ScopeChildren
from solo5_systemd.nomad.wait import wait_for_end
from solo5_systemd.unit.state import ActiveState, UnitState

STATE = DriverState(
    task=TaskName("web"), unit="solo5-task-web.service", invocation="ab" * 16, boot="boot", started=1,
    kind=UnitKind.SERVICE, logging=Logging.NOMAD,
)  # fmt: skip
RUN = UnitState(task=STATE.task, unit=STATE.unit, active=ActiveState.ACTIVE, log_fields={})


class CutOff(EngineSession):
    @property
    def engine(self) -> NoReturn:
        raise HostError("the connection to the system bus broke.")


@pytest.mark.parametrize("is_closing, warnings", [(False, 1), (True, 0)])
async def test_an_outage_is_in_the_log_unless_the_plugin_makes_it_by_ending(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_closing: bool, warnings: int
) -> None:
    monkeypatch.setattr(wait_module, "WATCH_INTERVAL_S", 60)
    session = CutOff()
    session.is_closing = is_closing
    with caplog.at_level(logging.WARNING):
        async with Background(wait_for_end(session, ScopeChildren(), STATE, RUN)) as waiting:
            assert not waiting.done()
    assert len(caplog.records) == warnings
