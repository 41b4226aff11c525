"""The verbs on tasks, called with command lines."""

import json
from dataclasses import replace

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.support.fakes.backends import line
from tests.support.fakes.background import yields
from tests.support.fakes.engine import FakeRuntime
from tests.support.fakes.tasks import STARTED, ended, running

from solo5_systemd.base.names import TaskName
from solo5_systemd.cli import parser
from solo5_systemd.cli.terminal import Screen
from solo5_systemd.cli.verbs import each_task, gc
from solo5_systemd.journal import console
from solo5_systemd.journal.lines import Stream
from solo5_systemd.network.endpoints import UNREPAIRED
from solo5_systemd.network.model import LeaseRecord, LeaseState
from solo5_systemd.network.overview import Repair
from solo5_systemd.storage import locks
from solo5_systemd.unit.outcome import Ending, Outcome


@pytest.fixture
def engine() -> FakeRuntime:
    return FakeRuntime(running("web", networked=True), running("api"), ended("old"))


def test_ps_lists_tasks_that_have_not_ended(solo5ctl: Solo5ctl) -> None:
    result = solo5ctl("ps")
    header, api, web = result.out.splitlines()
    assert header.split() == ["NAME", "IMAGE", "STATUS", "MEMORY", "ADDRESS", "PORTS"]
    assert api.startswith("api   web.hvt  Up ")
    assert web.endswith("  64M     10.89.0.2  0.0.0.0:8080->80/tcp, 127.0.0.1:53->53/udp")
    assert (result.status, result.err) == (0, "")
    assert solo5ctl("ps", root=False) == result


def test_ps_and_inspect_show_since_when_a_task_sleeps(solo5ctl: Solo5ctl) -> None:
    known = solo5ctl.engine.known[TaskName("web")]
    assert known.reservation is not None
    held = replace(known.reservation, idle_s=600)
    known = known._replace(asleep=known.started + 60_000_000, reservation=held)
    solo5ctl.engine.known[TaskName("web")] = known
    _, api, web = solo5ctl("ps").out.splitlines()
    assert ("  Asleep " in web, "  Up " in api) == (True, True)
    assert "  Status: Asleep " in solo5ctl("inspect", "web").out
    assert " Sleeps: after 600 s without a packet\n" in solo5ctl("inspect", "web").out
    [shown] = json.loads(solo5ctl("inspect", "--json", "web").out)
    assert shown["idle_s"] == 600
    assert shown["asleep_since"] == "2023-11-14T22:14:20.000000Z"
    assert "asleep_since" not in json.loads(solo5ctl("inspect", "--json", "api").out)[0]
    solo5ctl.engine.known[TaskName("web")] = known._replace(asleep=0)
    solo5ctl.engine.awake[TaskName("web")] = because = "its last packet was seen 7 s ago"
    assert f" Sleeps: after 600 s without a packet; {because}\n" in solo5ctl("inspect", "web").out
    assert json.loads(solo5ctl("inspect", "--json", "web").out)[0]["awake_because"] == because


def test_ps_shows_dormant_tasks(solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those whose unit is not loaded; the end of their last run is not shown."""
    monkeypatch.setattr(Screen, "now", lambda _: STARTED + 172_800_000_000)
    held = solo5ctl.engine.known[TaskName("web")].reservation
    assert held is not None
    solo5ctl.engine.dormant = [
        LeaseRecord(
            reservation=replace(held, task=TaskName(name), idle_s=600, idle_stops=True),
            state=LeaseState.WAITING, expires=0, asleep=STARTED,
        )
        for name in ("blog", "old")
    ]  # fmt: skip
    for words in ((), ("--all",)):
        rows = [line.split() for line in solo5ctl("ps", *words).out.splitlines()[1:]]
        assert [row[0] for row in rows] == ["api", "blog", "old", "web"]
        assert rows[1] == ["blog", "-", "Dormant", "2", "days", "-", *rows[3][-3:]]
        assert rows[2][1:] == rows[1][1:]
    assert solo5ctl("ps", "--quiet").out == "api\nblog\nold\nweb\n"
    found = {task["name"]: task for task in json.loads(solo5ctl("ps", "--all", "--json").out)}
    assert found.keys() == {"api", "blog", "old", "web"}
    assert (found["blog"]["phase"], found["blog"]["idle_s"]) == ("dormant", 600)
    assert found["blog"]["dormant_since"] == "2023-11-14T22:13:20.000000Z"
    assert (found["blog"]["nics"], found["blog"]["ports"]) == (found["web"]["nics"], found["web"]["ports"])
    solo5ctl.engine.known.clear()
    assert solo5ctl("ps").out.count(" Dormant 2 days ") == 2
    assert "\x1b" not in solo5ctl("ps", terminal=True).out.partition("Dormant")[2].partition("\n")[0]


def test_inspect_shows_a_dormant_task(solo5ctl: Solo5ctl) -> None:
    known = solo5ctl.engine.known[TaskName("web")]
    assert known.reservation is not None
    held = replace(known.reservation, idle_s=600, idle_stops=True)
    solo5ctl.engine.known[TaskName("web")] = known._replace(reservation=held)
    assert "   Ends: after 600 s without a packet\n" in solo5ctl("inspect", "web").out
    [runs] = json.loads(solo5ctl("inspect", "--json", "web").out)
    assert (runs["idle_action"], runs["phase"]) == ("stop", "running")
    solo5ctl.engine.known[TaskName("old")] = ended("old")._replace(asleep=STARTED, reservation=held)
    assert " Status: Dormant " in solo5ctl("inspect", "old").out
    [waits] = json.loads(solo5ctl("inspect", "--json", "old").out)
    assert (waits["phase"], waits["dormant_since"]) == ("dormant", "2023-11-14T22:13:20.000000Z")
    assert "asleep_since" not in waits


def test_what_the_operator_can_mend_of_a_network_is_shown_with_its_task(solo5ctl: Solo5ctl) -> None:
    """Once, and not what concerned an earlier run."""
    now = solo5ctl.engine.known[TaskName("web")].started
    mended = (now + 1, "tap s5-x was missing: it is restored")
    found = [(now + 2, f"{UNREPAIRED}A."), (now + 1, f"{UNREPAIRED}A."), mended, (now - 1, f"{UNREPAIRED}B.")]
    solo5ctl.engine.machine.networks.recorded = [
        Repair(time=time, what=what, tasks=(TaskName("web"),)) for time, what in found
    ]
    assert solo5ctl("ps").err == "solo5ctl: web: A.\n"
    assert " Problem: A.\n" in solo5ctl("inspect", "web").out
    [about] = json.loads(solo5ctl("inspect", "--json", "web").out)
    assert about["network_problems"] == ["A."]
    assert "Problem" not in solo5ctl("inspect", "api").out
    assert "network_problems" not in json.loads(solo5ctl("inspect", "--json", "api").out)[0]
    solo5ctl.engine.machine.networks.recorded = [
        Repair(time=now, what=f"{UNREPAIRED}{number}.", tasks=(TaskName("web"),)) for number in range(150)
    ]
    further = "solo5ctl: further problems of networks: 145; see solo5ctl network repairs.\n"
    assert solo5ctl("ps").err.endswith(f"solo5ctl: web: 4.\n{further}")


@pytest.mark.parametrize(
    ("words", "names"),
    [(["ps", "-q"], "api\nweb\n"), (["ps", "-aq"], "api\nold\nweb\n"), (["ps", "--all", "--quiet"], "api\nold\nweb\n")],
)
def test_ps_names(solo5ctl: Solo5ctl, words: list[str], names: str) -> None:
    assert solo5ctl(*words).out == names


def test_ps_of_nothing_is_a_header_or_an_empty_list(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.known.clear()
    assert solo5ctl("ps").out == "NAME  IMAGE  STATUS  MEMORY  ADDRESS  PORTS\n"
    assert json.loads(solo5ctl("ps", "--json").out) == []
    assert solo5ctl("ps", "-q").out == ""


@pytest.mark.parametrize(
    ("environment", "words", "coloured"),
    [({}, [], True), ({"NO_COLOR": "1"}, [], False), ({"TERM": "dumb"}, [], False), ({}, ["--no-color"], False)],
)
def test_colour_is_used_on_terminals_only(
    solo5ctl: Solo5ctl, environment: dict[str, str], words: list[str], coloured: bool
) -> None:
    assert ("\x1b[32mUp" in solo5ctl("ps", *words, terminal=True, environment=environment).out) is coloured
    assert ("\x1b" in solo5ctl(*words, "ps", terminal=True, environment=environment).out) is coloured
    assert "\x1b" not in solo5ctl("ps", *words, environment=environment).out


def test_inspect_shows_fields_or_json(solo5ctl: Solo5ctl) -> None:
    text = solo5ctl("inspect", "web", "old").out
    assert "    Unit: solo5-task-web.service\n" in text
    assert "Outcome: the guest exited with 0\n" in text
    documents = json.loads(solo5ctl("inspect", "--json", "old").out)
    assert documents[0]["outcome"]["ending"] == "exited"


def test_inspect_shows_the_disks_of_a_running_task_to_root(solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"disk": "config", "backing": "archive", "path": "local/app.toml", "sha256": "ab"}
    disks = [{"disk": "data", "backing": "named disk", "path": "/var/lib/solo5/disks/web"}, config]
    monkeypatch.setattr(locks, "records_of_tasks", lambda *_: {"web": locks.Record(disks=disks)})
    text = solo5ctl("inspect", "web").out
    assert "    Disk: data: named disk /var/lib/solo5/disks/web\n" in text
    assert "    Disk: config: archive local/app.toml, SHA-256 ab\n" in text
    assert json.loads(solo5ctl("inspect", "--json", "web").out)[0]["disks"] == disks
    assert "disks" not in json.loads(solo5ctl("inspect", "--json", "web", root=False).out)[0]


def test_stop_stops_all_concurrently_and_prints_each_name(solo5ctl: Solo5ctl) -> None:
    result = solo5ctl("stop", "web", "api", "web")
    assert (result.status, sorted(result.out.split())) == (0, ["api", "web"])
    assert solo5ctl.engine.calls == [("stop", name, 15, 10.0) for name in ("web", "api")]
    assert solo5ctl("stop", "-s", "INT", "-t", "0.5", "web").status == 0
    assert solo5ctl.engine.calls[-1] == ("stop", "web", 2, 0.5)


@pytest.mark.parametrize(("words", "number"), [([], 9), (["-s", "TERM"], 15), (["--signal", "2"], 2)])
def test_kill(solo5ctl: Solo5ctl, words: list[str], number: int) -> None:
    assert solo5ctl("kill", *words, "web").out == "web\n"
    assert solo5ctl.engine.calls == [("kill", "web", number)]


@pytest.mark.parametrize("words", [[], ["--force"], ["-f"]])
def test_rm(solo5ctl: Solo5ctl, words: list[str]) -> None:
    assert solo5ctl("rm", *words, "old").out == "old\n"
    assert solo5ctl.engine.calls == [("remove", "old", bool(words))]


def test_each_of_many_tasks_waits_for_its_turn(solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal needs a descriptor, of which a shell may permit fewer than there are tasks."""
    at_once: list[int] = []

    async def remove(_name: str, *, force: bool) -> None:
        at_once.append(1 + at_once[-1] if at_once else 1)
        await yields(1)
        at_once.append(at_once[-1] - 1)

    monkeypatch.setattr(solo5ctl.engine, "remove", remove)
    monkeypatch.setattr(each_task, "AT_ONCE", 2)
    assert solo5ctl("rm", *"abcd").status == 0
    assert (len(at_once), max(at_once)) == (8, 2)


@pytest.mark.parametrize("verb", parser.FOR_EACH_TASK)
def test_one_unknown_name_does_not_prevent_the_others(solo5ctl: Solo5ctl, verb: str) -> None:
    result = solo5ctl(verb, "gone", "web")
    assert result.status == 125
    assert result.out == "web\n"
    assert result.err == "solo5ctl: no task is named 'gone'.\nList them: solo5ctl ps --all\n"


@pytest.mark.parametrize("verb", [*parser.FOR_EACH_TASK, "run", "gc", "disk", "update", "rollback", "network"])
def test_verbs_that_change_something_require_root(solo5ctl: Solo5ctl, verb: str) -> None:
    words = {"gc": [], "disk": ["ls"], "network": ["ls"]}.get(verb, ["web"])
    result = solo5ctl(verb, *words, root=False)
    assert result.status == 125
    assert result.err.startswith("solo5ctl: this verb requires root.")
    assert len(result.err.splitlines()) == 2


def test_wait_prints_each_exit_status_in_order(solo5ctl: Solo5ctl) -> None:
    killed = Outcome(ending=Ending.OUT_OF_MEMORY, signal=9, sentence="OOM-killed")
    solo5ctl.engine.known |= {task.name: task for task in (ended("big", killed),)}
    assert solo5ctl("wait", "big", "old").out == "137\n0\n"
    first, second = json.loads(solo5ctl("wait", "--json", "big", "old").out)
    assert first["name"] == "big"
    assert first["outcome"]["ending"] == "out-of-memory"
    assert second["outcome"]["exit_status"] == 0


def test_logs_separate_stdout_and_stderr_and_do_not_change_bytes(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.lines = [line("hello"), line("bad", Stream.STDERR), line("\x1b[2Jbye")]
    result = solo5ctl("logs", "old")
    assert (result.status, result.out, result.err) == (0, "hello\n\x1b[2Jbye\n", "bad\n")
    assert solo5ctl.engine.calls == [("console", "old", None)]


def test_logs_options(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.lines = [line("hello")]
    assert solo5ctl("logs", "-f", "-n", "3", "-t", "old").out == "2023-11-14T22:13:20.000000Z hello\n"
    assert solo5ctl.engine.calls == [("follow", "old", 3)]


def test_an_empty_console_has_a_hint_without_root(solo5ctl: Solo5ctl) -> None:
    assert solo5ctl("logs", "old").err == ""
    assert solo5ctl("logs", "old", root=False).err.startswith("solo5ctl: no console lines: expected root")
    solo5ctl.engine.lines = [line("hello")]
    assert solo5ctl("logs", "old", root=False).err == ""


def test_an_empty_console_has_the_reason_where_there_is_one(
    solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def problem(namespace: str = "") -> str:
        return "journald stores none."

    monkeypatch.setattr(console, "storage_problem", problem)
    assert solo5ctl("logs", "old").err == "solo5ctl: no console lines: journald stores none.\n"
    assert solo5ctl("logs", "--follow", "old").err == "solo5ctl: no console lines: journald stores none.\n"
    solo5ctl.engine.lines = [line("hello")]
    assert solo5ctl("logs", "old").err == ""


def test_logs_json_is_one_object_per_line(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.lines = [line("a"), line("b\n", Stream.STDERR)]
    first, second = map(json.loads, solo5ctl("logs", "--json", "old").out.splitlines())
    assert first == {"time": "2023-11-14T22:13:20.000000Z", "stream": "stdout", "message": "a"}
    assert (second["stream"], second["message"]) == ("stderr", "b\n")


@pytest.mark.parametrize("verb", ["inspect", "logs", "wait", "stats"])
def test_an_unknown_task_is_one_sentence(solo5ctl: Solo5ctl, verb: str) -> None:
    result = solo5ctl(verb, "gone")
    assert (result.status, result.out) == (125, "")
    assert result.err == "solo5ctl: no task is named 'gone'.\nList them: solo5ctl ps --all\n"


@pytest.mark.parametrize(("words", "dry_run"), [([], False), (["--dry-run"], True)])
def test_gc_lists_removed_resources(
    solo5ctl: Solo5ctl, words: list[str], dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect_previous(*, dry_run: bool) -> list[str]:
        return [f"previous image, {dry_run}"]

    monkeypatch.setattr(gc, "collect_previous", collect_previous)
    solo5ctl.engine.gc.removed = ("tap s5-1", "image abc")
    lines = ["tap s5-1", "image abc", f"previous image, {dry_run}"]
    assert solo5ctl("gc", *words).out.splitlines() == lines
    assert json.loads(solo5ctl("gc", *words, "--json").out) == lines
    assert solo5ctl.engine.calls == [("collect", dry_run)] * 2
