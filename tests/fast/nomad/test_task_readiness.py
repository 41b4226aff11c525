"""A start that waits for readiness: answered, undone after the deadline, and watched afterwards."""

import asyncio
import os
from signal import SIGTERM

import pytest
from tests.fast.nomad.agent import Agent, agent
from tests.fast.nomad.conftest import Becomes
from tests.fast.nomad.values import NOTHING, SCOPES, UNIT, Fifos, port, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background, yields
from tests.support.fakes.clock import passed
from tests.support.fakes.images import stored

from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error, StartError
from solo5_systemd.engine import readiness as engine_ready
from solo5_systemd.network.model import Endpoint
from solo5_systemd.nomad import readiness
from solo5_systemd.nomad.errors import RECOVERABLE
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.unit.state import MainCode

pytestmark = pytest.mark.leaps

RULE = {"tcp": "http", "deadline": "60s", "interval": "0.1s"}


class Guest:
    """A guest whose probes fail with `why`, or succeed if that is empty; `matched` is the console line."""

    def __init__(self, machine: Machine) -> None:
        self.steps = machine.steps
        self.why = "connection refused"
        self.probed: list[Endpoint | str] = []
        self.matched: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def problem(self, endpoint: Endpoint, _: float) -> str:
        self.probed.append(endpoint)
        async with self.steps.step("probe"):
            return self.why

    async def line(self, unit: str, since: int, pattern: str, namespace: str) -> str:
        self.probed.append(pattern)
        return await asyncio.shield(self.matched)


@pytest.fixture
async def guest(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Guest:
    made = Guest(machine)
    monkeypatch.setattr(engine_ready, "failure", made.problem)
    monkeypatch.setattr(engine_ready, "first_line", made.line)
    monkeypatch.setattr(engine_ready, "PROBE_INTERVAL_S", 0.001)
    return made


def task(fifos: Fifos | None = None, /, **rule: str) -> wire.TaskConfig:
    job = task_config(port("http", 25001, 80), ready=rule or RULE)
    return fifos.of(job) if fifos else job


async def until_probed(guest: Guest) -> None:
    """Wait until the guest has been probed once."""
    while not guest.probed:  # noqa: ASYNC110 - the fake has no event
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "status, error, again",
    [(3, StartError, True), (0, StartError, True), (64, InvalidRequestError, False)],
    ids=["failed", "well", "refusing its arguments"],
)
async def test_a_guest_that_ends_before_it_is_ready_fails_its_start_at_once(
    machine: Machine, nomad: Agent, fifos: Fifos, guest: Guest, status: int, error: type[Solo5Error], again: bool
) -> None:
    async with Background(nomad.start(task(fifos))) as starting:
        await until_probed(guest)
        machine.units.end(UNIT, MainCode.EXITED, status)
        with pytest.raises(error, match="ended before it was ready .*: the guest exited with") as caught:
            await starting
    assert isinstance(caught.value, RECOVERABLE) is again
    assert (machine.holds, machine.relay.held) == (NOTHING, {})


async def test_a_guest_that_is_never_ready_is_probed_ever_more_rarely(nomad: Agent, guest: Guest) -> None:
    """Each probe takes time of the driver, which has other tasks."""
    with pytest.raises(StartError, match="was not ready within 60 s"):
        await nomad.start(task())
    assert len(guest.probed) < 300


async def test_a_guest_that_was_ready_and_has_ended_did_start(machine: Machine, nomad: Agent, guest: Guest) -> None:
    """Its last line may reach the journal after PID 1 has reported its end."""
    async with Background(nomad.start(task_config(ready={"console": "done"}))) as starting:
        await until_probed(guest)
        machine.units.end(UNIT, MainCode.EXITED, 0)
        await yields(500)
        guest.matched.set_result("done")
        await starting
    assert (await nomad.wait()).result.exit_code == 0


# --- afterwards ----------------------------------------------------------------------------------------------


async def test_a_port_of_a_guest_without_nics_is_refused_before_anything_is_made(
    machine: Machine, nomad: Agent
) -> None:
    machine.images.files["/srv/app"] = stored()
    job = task_config(ready={"tcp": "80"})
    with pytest.raises(InvalidRequestError, match="config.ready.tcp is '80', and the image has no NIC"):
        await nomad.start(job)
    assert "take image" in machine.steps.taken
    assert not {"reserve", "start unit"} & set(machine.steps.taken)


async def ready(nomad: Agent, guest: Guest, **rule: str) -> wire.StartTaskResponse:
    guest.why = ""
    return await nomad.start(task(**{**RULE, **rule}))


async def event(nomad: Agent, text: str) -> str:
    for _ in range(400):
        for message in await nomad.messages():
            if text in message:
                return message
        await asyncio.sleep(0.01)
    raise AssertionError(f"no event has {text!r}")


async def test_changes_alone_are_events_and_one_missed_answer_is_none(
    nomad: Agent, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "-" * readiness.LOST_AFTER_PROBES
    answers = [*f"+-+--+{lost}-----+{lost}++"]

    async def failure(endpoint: Endpoint, _: float) -> str:
        await asyncio.sleep(0)
        return "connection refused" if answers and answers.pop(0) == "-" else ""

    await ready(nomad, guest)
    monkeypatch.setattr(engine_ready, "failure", failure)
    await event(nomad, "No longer")
    assert len(answers) == 5 + 1 + len(lost) + 2
    while answers:
        await passed(0.1)
    await passed(1.0)
    later = [message[:11] for message in await nomad.messages()]
    assert later == ["Ready again", "No longer r", "Ready again"]


async def test_a_guest_that_stands_still_is_not_called_lost(machine: Machine, nomad: Agent, guest: Guest) -> None:
    await ready(nomad, guest, on_loss="restart")
    await nomad.signal("SIGSTOP")
    guest.why = "no answer within 0.5 s"
    before = len(guest.probed)
    await passed(60)
    assert len(guest.probed) - before > 500, "each 0.1 s, also while it is frozen"
    assert not machine.units.loaded[UNIT].over
    await nomad.signal("SIGCONT")
    assert (await nomad.wait()).result.signal == 15


async def test_a_loss_that_cannot_be_acted_on_is_found_out_again(
    machine: Machine, nomad: Agent, guest: Guest, caplog: pytest.LogCaptureFixture
) -> None:
    await ready(nomad, guest, on_loss="restart")
    machine.steps.errors["state"] = HostError("the system bus does not answer.")
    guest.why = "connection refused"
    while "failed, retrying: the system bus does not answer." not in caplog.text:
        await passed(0.1)
    assert not machine.units.loaded[UNIT].over
    del machine.steps.errors["state"]
    assert (await nomad.wait()).result.signal == 15


@pytest.mark.parametrize("step", ["state", "probe"])
async def test_a_fault_of_ours_in_one_watch_ends_no_other(
    machine: Machine, nomad: Agent, guest: Guest, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    await ready(nomad, guest)
    machine.steps.errors[step] = ZeroDivisionError("oops")
    guest.why = "connection refused"
    for _ in range(100):
        await passed(0.1)
    assert "oops" in caplog.text
    del machine.steps.errors[step]
    await nomad.stop()
    await nomad.wait()


async def test_a_scope_that_is_stopped_for_its_loss_has_that_as_its_end(
    machine: Machine, guest: Guest, child: Becomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest.why = ""
    child("signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\nwrite(1)\nsignal.pause()")  # as solo5-hvt

    async def stop(unit: str) -> None:
        pids = machine.units.started[0].value("PIDs")
        assert isinstance(pids, list)
        os.kill(pids[0], SIGTERM)

    monkeypatch.setattr(machine.units, "stop", stop)
    async with agent(allowed_units=SCOPES) as nomad:
        await nomad.start(task_config(port("http", 25001, 80), unit="scope", ready={**RULE, "on_loss": "restart"}))
        while not child.output.exists():
            await passed(0.1)
        guest.why = "connection refused"
        ended = await nomad.wait()
    assert (ended.result.signal, ended.err) == (15, "")


async def test_no_call_is_made_after_the_end(machine: Machine, nomad: Agent, guest: Guest) -> None:
    await ready(nomad, guest)
    machine.units.end(UNIT, MainCode.EXITED, 0)
    await nomad.wait()
    guest.probed.clear()
    await passed(60)
    assert guest.probed == []
