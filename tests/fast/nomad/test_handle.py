"""The task handle: encoded and decoded, small, and without secrets."""

import json
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.fast.nomad.values import TASK_ID

from solo5_systemd.base.errors import InvalidRequestError, NoSuchTaskError
from solo5_systemd.base.names import TaskName, task_service
from solo5_systemd.network.model import Protocol
from solo5_systemd.nomad.handle import VERSION, DriverState, decode, encode, verify
from solo5_systemd.nomad.option_values import Logging
from solo5_systemd.nomad.task_options import OnLoss, ReadinessProbe
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.task.log_fields import LOG_NAMESPACE
from solo5_systemd.unit.state import ActiveState, UnitState

STATES = Path(__file__).parent / "states"
RULE = ReadinessProbe(
    protocol=Protocol.TCP, address=IPv4Address("10.89.0.2"), port=80, interval=10.0, on_loss=OnLoss.RESTART
)


def state(*, logging: Logging = Logging.NOMAD, name: str = "web", namespace: str = "") -> DriverState:
    run = UnitState(
        task=TaskName(name),
        unit=task_service(TaskName(name)),
        active=ActiveState.ACTIVE,
        invocation="0123456789abcdef" * 2,
        started=1_700_000_000_000_000,
        log_fields={LOG_NAMESPACE: namespace} if namespace else {},
    )
    return DriverState(run=run, boot="5d0d7a3c-0f5e-4f0e-9a55-6f1c2e7e7d4b", logging=logging)


@pytest.mark.parametrize(
    "written",
    [
        *(state(logging=logging) for logging in Logging),
        state(namespace="guests"),
        replace(state(), ready=RULE),
    ],
)
def test_what_was_written_is_read_back(written: DriverState) -> None:
    assert decode(encode(written)) == written


def test_what_each_version_stored_is_read_by_this_one() -> None:
    stored = {path.name: decode(path.read_bytes()) for path in STATES.iterdir()}
    assert stored == {f"v{version}.json": replace(state(), ready=RULE) for version in range(1, VERSION + 1)}


def test_this_versions_own_is_written_as_it_was() -> None:
    now, then = encode(replace(state(), ready=RULE)), (STATES / f"v{VERSION}.json").read_bytes()
    assert json.loads(now) == json.loads(then)
    assert sorted(now) == sorted(then), "the same bytes, perhaps with the keys in another order"


def test_it_is_small_for_the_longest_id_and_holds_nothing_of_the_jobs() -> None:
    stored = encode(state(name=name_of(TASK_ID * 100)))
    assert len(stored) < 512
    assert json.loads(stored).keys() == {"version", "run", "boot", "logging"}


def damaged(**changes: object) -> bytes:
    document = json.loads(encode(state())) | changes
    return json.dumps({key: value for key, value in document.items() if value is not None}).encode()


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "the task's stored state cannot be read: it is not JSON."),
        (b"[" * 100_000, "it is not JSON"),
        (b"null", "driver_state is None: expected a table"),
        (b"{}", "driver_state.version is missing"),
        (damaged(version=VERSION + 1), f"has version {VERSION + 1}: expected at most {VERSION}."),
        (damaged(ready=["x"]), "driver_state.ready is ['x']: expected a table"),
        (damaged(ready={"protocol": "tcp"}), "driver_state.ready.address is missing"),
        (damaged(version=0), "driver_state.version is 0"),
        (damaged(run=None), "driver_state.run.task is missing"),
        (damaged(run={"task": "../x"}), "driver_state.run.task: task name '../x' is not usable"),
        (damaged(boot=1), "driver_state.boot is 1"),
        (damaged(logging="file"), "driver_state.logging is 'file': expected one of"),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value[:12]),
)  # fmt: skip
def test_damage_and_later_versions_are_reported(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(data)
    assert words in str(caught.value)


def test_a_run_counts_as_active_whatever_a_handle_says() -> None:
    stored = decode(damaged(run=json.loads(encode(state()))["run"] | {"active": "inactive"}))
    assert stored == state()


def test_without_an_invocation_no_unit_is_the_one() -> None:
    run = state().run._replace(invocation="")
    with pytest.raises(NoSuchTaskError):
        verify(replace(state(), run=run), state().boot, run)
