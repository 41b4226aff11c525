"""The events of a task's life: each step once, throttled, not repeated after a recovery."""

import asyncio

import pytest
from tests.fast.nomad.agent import agent, agent_of_a_task
from tests.fast.nomad.values import TASK_ID, port, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background, yields
from tests.support.fakes.clock import passed
from tests.support.fakes.images import stored

from solo5_systemd.base.errors import HostError, Solo5Error
from solo5_systemd.base.names import task_service
from solo5_systemd.journal.lines import DroppedLines
from solo5_systemd.network.model import Repair
from solo5_systemd.nomad import events
from solo5_systemd.nomad.events import SLOW_START_S
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.unit.state import MainCode

NAME = name_of(TASK_ID)
UNIT = task_service(NAME)


async def test_a_start_and_its_end_are_reported_step_by_step(machine: Machine) -> None:
    async with agent() as nomad:
        await nomad.start(task_config(port("http", 80)))
        machine.units.end(UNIT, MainCode.EXITED, 3)
        await nomad.wait()
        preflight_event, *events = await nomad.messages()
        assert preflight_event.startswith("Preflight passed: app (")
        assert preflight_event.endswith(") for hvt 0.12.1, ABI 2; 54 of 64 MiB for the guest; NIC service")
        assert events == [
            "NIC service has 10.89.0.2 in network default",
            f"Started {UNIT}, invocation {machine.units.loaded[UNIT].invocation}",
            "The guest exited with 3",
        ]


async def test_a_task_without_nics_tells_of_no_address(machine: Machine) -> None:
    machine.images.files["/srv/app"] = stored()
    async with agent_of_a_task() as nomad:
        assert [message.partition(" ")[0] for message in await nomad.messages()] == ["Preflight", "Started"]


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        ((), ["name servers of its group (9.9.9.9, 192.0.2.53): no argument has {dns}", "search domains"]),
        (("{dns}",), ["search domains of its group (lan): no argument has {search}"]),
        (("{search}",), ["name servers"]),
        (("{dns1}", "{search}"), []),
    ],
)
async def test_name_servers_of_a_group_that_its_guest_does_not_get_are_an_event(
    machine: Machine, arguments: tuple[str, ...], unused: list[str]
) -> None:
    task = task_config(args=list(arguments))
    task.dns.servers.extend(["9.9.9.9", "192.0.2.53"])
    task.dns.searches.append("lan")
    task.network_isolation_spec.mode = wire.NetworkIsolationSpec.GROUP
    task.network_isolation_spec.path = "/var/run/netns/group"
    async with agent() as nomad:
        await nomad.start(task)
        found = [each for each in await nomad.messages() if each.startswith("The guest does not get the ")]
        assert [
            each.partition(" get the ")[2][: len(words)] for each, words in zip(found, unused, strict=True)
        ] == unused


@pytest.mark.parametrize(
    "step, before", [("take image", []), ("reserve", ["Preflight"]), ("attach", ["Preflight", "NIC"])]
)
async def test_a_start_that_fails_tells_how_far_it_came(machine: Machine, step: str, before: list[str]) -> None:
    machine.steps.errors[step] = HostError("away.")
    async with agent() as nomad:
        with pytest.raises(Solo5Error):
            await nomad.start(task_config())
        assert [message.partition(" ")[0] for message in await nomad.messages()] == before


@pytest.mark.parametrize(
    "step, doing",
    [
        ("take image", "checking the image and what it needs"),
        ("reserve", "reserving addresses"),
        ("attach", "attaching its network"),
        ("start unit", "starting its unit"),
    ],
)
async def test_a_slow_start_says_which_step_it_is_at(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, step: str, doing: str
) -> None:
    monkeypatch.setattr(events, "SLOW_START_S", [number / 20 for number in range(1, 200)])
    machine.steps.hang_on = step
    async with agent() as nomad, Background(nomad.start(task_config())) as starting:
        await machine.steps.hanging.wait()
        seen: list[str] = []
        while not seen or not seen[-1].endswith(f" s still {doing}"):
            seen += await nomad.messages()
        assert seen[-1].startswith("Slow start: after ")
        machine.steps.go_on.set()
        await starting


@pytest.mark.leaps
async def test_a_start_that_is_not_slow_says_nothing_of_it_later(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        await passed(2 * SLOW_START_S[-1])
        assert not [message for message in await nomad.messages() if "Slow" in message]


# --- nothing twice -------------------------------------------------------------------------------------------


async def test_an_end_is_reported_once_to_however_many_wait_for_it(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        machine.units.end(UNIT, MainCode.EXITED, 0)
        await asyncio.gather(*(nomad.wait() for _ in range(5)))
        await nomad.stop()
        await nomad.wait()
        await nomad.destroy()
        assert [message for message in await nomad.messages() if "exited" in message] == ["The guest exited with 0"]


# --- events of services ----------------------------------------------------------------------------------------


async def test_what_is_found_while_a_task_starts_is_reported_to_it(machine: Machine) -> None:
    machine.steps.hang_on = "attach"
    async with agent() as nomad, Background(nomad.start(task_config())) as starting:
        await machine.steps.hanging.wait()
        machine.networks.repaired.put_nowait(Repair(tasks=(NAME,), what="not repaired: a route takes its packets"))
        await yields()
        assert (await nomad.messages())[-1] == "Network not repaired: a route takes its packets"
        machine.steps.go_on.set()
        await starting


async def test_lines_that_are_nowhere_are_reported_by_their_number(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        machine.relay.dropped.put_nowait(DroppedLines(task=NAME, lines=12))
        await yields()
        message = "journald dropped 12 lines of the console: its rate limit was exceeded"
        assert (await nomad.messages())[-1] == message


async def test_an_ended_task_hears_no_more_news(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        machine.units.end(UNIT, MainCode.EXITED, 0)
        await nomad.wait()
        await nomad.messages()
        machine.networks.repaired.put_nowait(Repair(tasks=(NAME,), what="late"))
        await yields()
        assert await nomad.messages() == []
