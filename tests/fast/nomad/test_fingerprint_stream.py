"""The stream of fingerprints: one at once, then only what has changed, and no end."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fast.nomad.agent import Agent, agent
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background
from tests.support.fakes.clock import passed

from solo5_systemd.base.errors import HostError, SettingsError
from solo5_systemd.nomad import engine, fingerprint, housekeeping
from solo5_systemd.nomad.fingerprint import HEALTHY, UNDETECTED, UNHEALTHY
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.structs_pb2 import Attribute

Fingerprint = wire.FingerprintResponse
GOOD = Fingerprint(
    attributes={"driver.solo5.hvt.path": Attribute(string_val="/a")}, health=HEALTHY, health_description="Healthy"
)
SICK = Fingerprint(health=UNHEALTHY, health_description="no bus")
Stream = AsyncIterator[Fingerprint]


class Looks:
    """What each look finds; the last is found ever after."""

    def __init__(self, *found: Fingerprint) -> None:
        self.found = list(found)
        self.count = 0

    async def __call__(self) -> Fingerprint:
        self.count += 1
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "HEALTHY_INTERVAL_S", 0.001)
    monkeypatch.setattr(fingerprint, "UNHEALTHY_INTERVAL_S", 0.001)


async def description(stream: Stream) -> str:
    return (await anext(stream)).health_description


@asynccontextmanager
async def stream_of(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[Agent, Stream], None]:
    async with agent() as nomad:
        monkeypatch.setattr(nomad.driver, "_fingerprint", looks)
        yield nomad, nomad.fingerprints()


async def test_only_what_has_changed_is_sent(
    machine: Machine, no_pause: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(GOOD, GOOD, SICK, SICK, GOOD)
    with caplog.at_level(logging.INFO):
        async with stream_of(looks, monkeypatch) as (_, stream):
            assert [await description(stream) for _ in range(3)] == ["Healthy", "no bus", "Healthy"]
    assert looks.count == 5
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]


@pytest.mark.leaps
async def test_a_stream_on_which_nothing_changes_stays_open_and_silent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(GOOD)
    async with stream_of(looks, monkeypatch) as (_, stream):
        await anext(stream)
        async with Background(description(stream)) as waiting:
            await passed(3599)
            assert looks.count == 120, "one each half minute"
            assert not waiting.done()


# --- the driver's own looks ----------------------------------------------------------------------------------


async def test_a_good_machine_is_healthy_without_a_process_being_started(machine: Machine, nomad: Agent) -> None:
    found = await anext(nomad.fingerprints())
    assert (found.health, found.health_description) == (HEALTHY, "Healthy")
    assert found.attributes["driver.solo5.version"] == Attribute(string_val="1.2.3")
    assert {*machine.steps.taken} <= {"version", "probe", "sweep disks", "reclaim disks"}


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        ("version", HostError("the system bus does not answer."), "the system bus does not answer."),
        ("probe", HostError("the system bus does not answer."), "the system bus does not answer."),
        ("probe", ZeroDivisionError("oops"), "internal error"),
    ],
)
async def test_a_machine_that_cannot_be_looked_at_is_unhealthy_and_heals_by_itself(
    machine: Machine,
    nomad: Agent,
    no_pause: None,
    caplog: pytest.LogCaptureFixture,
    step: str,
    error: Exception,
    words: str,
) -> None:
    machine.steps.errors[step] = error
    stream = nomad.fingerprints()
    found = await anext(stream)
    assert (found.health, words in found.health_description) == (UNHEALTHY, True)
    assert found.attributes == {"driver.solo5.version": Attribute(string_val="1.2.3")}
    machine.steps.errors.clear()
    assert await description(stream) == "Healthy"
    assert ("oops" in caplog.text) is isinstance(error, ZeroDivisionError)


async def test_nothing_is_removed_while_the_configuration_cannot_be_read(machine: Machine) -> None:
    """Nor are networks, which declared tasks may have, too."""
    networks = housekeeping.NETWORKS
    networks.write_text("[network.lab]\n")
    async with agent() as nomad:
        await nomad.configure(gc=[{"tasks": False, "interval": "soon"}])
        stream = nomad.fingerprints()
        assert (await anext(stream)).health == UNDETECTED
        gc = nomad.driver.session.config.gc
        assert (gc.enabled, gc.tasks, gc.dangling_tasks.enabled) == (False, False, False)
        assert networks.read_text() == "[network.lab]\n"
        await nomad.configure(network={"web": {"mtu": 1400}})
        assert await description(stream) == "Healthy"
        gc = nomad.driver.session.config.gc
        assert (gc.enabled, gc.tasks, gc.dangling_tasks.enabled) == (True, True, True)
        assert networks.read_text() == '[network."web"]\nmtu = 1400\n'


async def test_a_configuration_that_is_mended_is_seen_at_once(nomad: Agent) -> None:
    await nomad.configure(enabled=False)
    stream = nomad.fingerprints()
    await anext(stream)
    await nomad.configure()
    assert await description(stream) == "Healthy"


async def test_a_wrong_file_of_the_hosts_is_unhealthy_in_its_own_words(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> None:
        raise SettingsError("/etc/solo5/x.toml: mtu is 'x': expected a whole number.")

    monkeypatch.setattr(engine, "CachedSettings", lambda: read)
    async with agent() as nomad:
        reason = await description(nomad.fingerprints())
    assert reason == "/etc/solo5/x.toml: mtu is 'x': expected a whole number."
