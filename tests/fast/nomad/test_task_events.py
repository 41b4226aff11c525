"""The events of a task's life: each step once, throttled, not repeated after a recovery."""

import pytest
from tests.fast.nomad.agent import Agent, agent, agent_of_a_task
from tests.fast.nomad.values import NAME, UNIT, in_group, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background, yields
from tests.support.fakes.clock import passed

from solo5_systemd.base.errors import HostError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.overview import Repair
from solo5_systemd.nomad import start, tasks
from solo5_systemd.nomad.event_messages import TaskEvent
from solo5_systemd.nomad.event_throttle import BURST
from solo5_systemd.nomad.start import SLOW_START_S
from solo5_systemd.unit.state import MainCode


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
    nomad: Agent, arguments: tuple[str, ...], unused: list[str]
) -> None:
    task = in_group(args=list(arguments))
    task.dns.servers.extend(["9.9.9.9", "192.0.2.53"])
    task.dns.searches.append("lan")
    await nomad.start(task)
    found = [each for each in await nomad.messages() if each.startswith("The guest does not get the ")]
    assert [each.partition(" get the ")[2][: len(words)] for each, words in zip(found, unused, strict=True)] == unused


@pytest.mark.parametrize(
    "step, before", [("take image", []), ("reserve", ["Preflight"]), ("attach", ["Preflight", "NIC"])]
)
async def test_a_start_that_fails_tells_how_far_it_came(
    machine: Machine, nomad: Agent, step: str, before: list[str]
) -> None:
    machine.steps.errors[step], machine.steps.hang_on = HostError("away."), step
    async with Background(nomad.start(task_config())) as starting:
        await machine.steps.hanging.wait()
        for _ in range(BURST + 2):
            nomad.driver.tasks.publish(TaskEvent(message="Mended"), NAME)
        machine.steps.go_on.set()
        with pytest.raises(Solo5Error):
            await starting
    repairs = ["Mended"] * (BURST + 1)  # the last one with the number of the others
    assert [message.partition(" ")[0] for message in await nomad.messages()] == [*before, *repairs]
    assert not nomad.driver.events._throttles, "no later event frees them"


@pytest.mark.parametrize(
    "step, doing",
    [
        ("take image", "checking the image and what it needs"),
        ("reserve", "reserving addresses"),
        ("open stderr", "preparing its disks and console"),
        ("attach", "attaching its network"),
        ("start unit", "starting its unit"),
    ],
)
async def test_a_slow_start_has_an_event_with_its_current_step(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, step: str, doing: str
) -> None:
    monkeypatch.setattr(start, "SLOW_START_S", [number / 20 for number in range(1, 200)])
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
async def test_a_start_that_is_not_slow_has_no_event_later(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        await passed(2 * SLOW_START_S[-1])
        assert not [message for message in await nomad.messages() if "Slow" in message]


# --- events of services ----------------------------------------------------------------------------------------


async def test_lines_that_are_nowhere_are_reported_by_their_number(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        machine.relay.dropped.put_nowait((NAME, 12))
        await yields()
        message = "journald dropped 12 lines of the console: its rate limit was exceeded"
        assert (await nomad.messages())[-1] == message


async def test_a_repair_for_many_tasks_names_none_of_the_tasks_anew(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take the square of their number, and the calls of all tasks would wait for it."""
    async with agent_of_a_task() as nomad:
        monkeypatch.delattr(tasks, "name_of")
        machine.networks.repaired.put_nowait(Repair(tasks=(TaskName("other"), NAME), what="mended"))
        await yields()
        assert (await nomad.messages())[-1] == "Network repaired: mended"


async def test_an_ended_task_hears_no_more_news(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        machine.units.end(UNIT, MainCode.EXITED, 0)
        await nomad.wait()
        await nomad.messages()
        machine.networks.repaired.put_nowait(Repair(tasks=(NAME,), what="late"))
        await yields()
        assert await nomad.messages() == []
