"""What the services answer about the driver itself, what no unikernel can, and errors on their way to Nomad."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.fast.nomad.agent import Agent, agent_of_a_task
from tests.fast.nomad.values import NOTHING, UNIT, packed, task_config
from tests.support.fakes.backends import Machine

from solo5_systemd.base.errors import (
    BY_DBUS_NAME,
    DependencyError,
    HostError,
    SettingsError,
    Solo5Error,
    StartError,
    StoreFullError,
    TakenError,
)
from solo5_systemd.nomad.base_plugin import BasePlugin
from solo5_systemd.nomad.errors import detail_of
from solo5_systemd.nomad.proto import base_pb2 as base
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.structs_pb2 import RecoverableError
from solo5_systemd.nomad.service import CANNOT_EXECUTE, DriverPlugin
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.unit.state import MainCode


async def test_the_plugin_has_a_name_a_type_and_versions(nomad: Agent) -> None:
    info = await nomad.base.plugin_info(base.PluginInfoRequest())
    assert info == base.PluginInfoResponse(
        type=base.DRIVER, plugin_api_versions=["v0.1.0"], plugin_version="1.2.3", name="solo5"
    )


@pytest.mark.parametrize("file, service, kind", [(base, "BasePlugin", BasePlugin), (wire, "Driver", DriverPlugin)])
def test_each_method_of_nomads_services_is_implemented(file: Any, service: str, kind: type) -> None:
    methods = file.DESCRIPTOR.services_by_name[service].methods
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower() for method in methods]
    assert [name for name in names if not hasattr(kind, name)] == []


@pytest.mark.parametrize("collected", [True, False])
async def test_what_is_offered_is_what_can_be_done(nomad: Agent, collected: bool) -> None:
    await nomad.configure(disable_log_collection=not collected)
    offered = (await nomad.driver.capabilities(wire.CapabilitiesRequest())).capabilities
    assert offered == wire.DriverCapabilities(
        send_signals=True,
        exec=False,
        fs_isolation=wire.DriverCapabilities.NONE,
        network_isolation_modes=[wire.NetworkIsolationSpec.HOST, wire.NetworkIsolationSpec.GROUP],
        must_create_network=False,
        mount_configs=wire.DriverCapabilities.ANY_MOUNTS,
        disable_log_collection=not collected,
    )


async def test_a_configuration_is_taken_without_any_effect_on_the_machine(machine: Machine, nomad: Agent) -> None:
    for config in (packed(image_paths=["/srv"]), b"", b"\xc1"):
        await nomad.base.set_config(base.SetConfigRequest(msgpack_config=config))
    assert machine.steps.taken == []


async def test_nothing_is_started_under_a_configuration_that_is_wrong(machine: Machine, nomad: Agent) -> None:
    await nomad.base.set_config(base.SetConfigRequest(msgpack_config=packed(enabled="no")))
    with pytest.raises(SettingsError, match="plugin.solo5.config.enabled is 'no'"):
        await nomad.start(task_config())
    assert machine.holds == NOTHING


async def test_what_the_plugin_sets_holds_and_not_what_the_host_has(nomad: Agent) -> None:
    await nomad.configure(tender_paths=["/opt/tenders"], image_store_mb=9, log_namespace="guests")
    found = nomad.driver.session.settings()
    assert (found.tender_paths, found.image_store_mb, found.log_namespace) == (("/opt/tenders",), 9, "guests")
    await nomad.configure()
    assert nomad.driver.session.settings() == Settings()


async def test_input_that_comes_after_exec_was_refused_finds_its_call_open(nomad: Agent) -> None:
    async def terminal() -> AsyncIterator[wire.ExecTaskStreamingRequest]:
        yield wire.ExecTaskStreamingRequest()

    answers = nomad.driver.exec_task_streaming(terminal())
    assert b"a unikernel has no shell" in (await anext(answers)).stderr.data
    assert (await anext(answers)).result.exit_code == CANNOT_EXECUTE
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(answers)


async def test_a_task_is_shown_with_all_that_the_agent_reads_unseen(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        seen = (await nomad.inspect()).task
        assert [seen.HasField(field) for field in ("started_at", "completed_at", "result")] == [True, True, True]
        assert (seen.state, seen.completed_at.ToMicroseconds()) == (wire.RUNNING, 0)
        machine.units.end(UNIT, MainCode.EXITED, 3)
        waited = await nomad.wait()
        seen = (await nomad.inspect()).task
        assert waited.HasField("result")
        assert (seen.state, seen.result.exit_code) == (wire.EXITED, 3)
        assert seen.completed_at.ToMicroseconds() == machine.units.loaded[UNIT].ended


TRY_AGAIN: set[type[Solo5Error]] = {HostError, SettingsError, DependencyError, StoreFullError, TakenError, StartError}


def test_only_what_can_pass_is_worth_another_try_and_an_unforeseen_error_is_not_judged() -> None:
    judged = {error: detail_of(error("port 80 is taken.")) for error in BY_DBUS_NAME.values()}
    assert judged == {error: RecoverableError(recoverable=error in TRY_AGAIN) for error in BY_DBUS_NAME.values()}
    assert set(judged) > TRY_AGAIN
    assert detail_of(ValueError("oops")) is None
