"""`run`: the workload, the foreground, signals, exit statuses, and the plan of `--dry-run`."""

import json
import os
import shlex
import signal as signals
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.support.fakes.backends import line
from tests.support.fakes.images import planned
from tests.support.fakes.tasks import LEASE, PORTS, running

from solo5_systemd.base.errors import HostError, ImageError, NotFoundError, Solo5Error, StartError, TakenError
from solo5_systemd.base.names import TaskName, UnitKind
from solo5_systemd.cli import run_modes
from solo5_systemd.cli.verbs import run
from solo5_systemd.engine import facts
from solo5_systemd.journal.lines import Stream
from solo5_systemd.network.model import Reservation
from solo5_systemd.settings.resolver import Resolver, name_servers, ntp_servers
from solo5_systemd.settings.solo5_toml import parse_settings
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.outcome import Ending, Outcome


def started(solo5ctl: Solo5ctl) -> Workload:
    (workload,) = solo5ctl.engine.workloads
    return workload


def test_all_options_are_in_the_workload(solo5ctl: Solo5ctl) -> None:
    words = (
        "run --name web -d -m 64M --cpus 1.5 --cpu-weight 50 --net service=lab,ip=10.1.2.3 --publish 8080:80 "
        "-p service:53:53/udp --block storage=/srv/a,sector-size=4096 --tender hvt --property TasksMax=32 "
        "--log-field TEAM=web /srv/web.hvt --ipv4={net.service.ipv4_cidr} --name x -- -d"
    )
    assert solo5ctl(*words.split()).out == "web\n"
    workload = started(solo5ctl)
    assert workload.name == "web"
    assert workload.image == "/srv/web.hvt"
    assert workload.arguments == ("--ipv4={net.service.ipv4_cidr}", "--name", "x", "--", "-d")
    assert (workload.memory, workload.cpus, workload.cpu_weight) == (64 << 20, 1.5, 50)
    assert [(nic.nic, nic.network, str(nic.ipv4)) for nic in workload.nics] == [("service", "lab", "10.1.2.3")]
    assert [(port.nic, port.host_port, port.port) for port in workload.publish] == [
        (None, 8080, 80),
        ("service", 53, 53),
    ]
    assert [(disk.disk, disk.path, disk.sector_size) for disk in workload.disks] == [("storage", "/srv/a", 4096)]
    assert workload.tender == "hvt"
    assert workload.kind is UnitKind.SERVICE
    assert workload.properties == (("TasksMax", "32"),)
    assert workload.log_fields == (("TEAM", "web"),)


def test_defaults_are_those_of_podman(solo5ctl: Solo5ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    solo5ctl("run", "--block", "a=disk", "hello.spt")
    workload = started(solo5ctl)
    assert workload.name.startswith("hello-")
    assert workload.image == str(tmp_path / "hello.spt")
    assert workload.disks[0].path == str(tmp_path / "disk")
    assert (workload.memory, workload.cpus, workload.nics, workload.arguments) == (128 << 20, None, (), ())
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "the current directory cannot be used: No such file" in solo5ctl("run", "hello.spt").err


def test_name_servers_and_host_name_are_in_the_workload(solo5ctl: Solo5ctl) -> None:
    words = "run -d --dns 9.9.9.9 --dns 192.0.2.53 --dns-search lan. --ntp 192.0.2.123 --hostname shop "
    words += "--add-host db:192.0.2.7 --add-host up:host-gateway a.hvt {dns2} {search} {ntp} {hostname} {hosts}"
    solo5ctl(*words.split())
    workload = started(solo5ctl)
    assert [*map(str, workload.hosts)] == ["db:192.0.2.7", "up:host-gateway"]
    found = Resolver(servers=name_servers(["9.9.9.9", "192.0.2.53"]), search=("lan",), ntp=ntp_servers(["192.0.2.123"]))
    assert (workload.resolver, workload.hostname) == (found, "shop")


@pytest.mark.parametrize(
    "option, value, arguments, words",
    [
        ("--dns", "9.9.9.9", (), "--dns has no effect: expected {dns} in an argument of the guest, or a network "),
        ("--dns", "9.9.9.9", ("{{dns}}", "{search}"), 'argument that the guest takes, such as "--dns-servers='),
        ("--dns-search", "lan", ("{dns}",), "--dns-search has no effect: expected {search} in an argument"),
        ("--hostname", "shop", ("{name}",), "--hostname has no effect: expected {hostname} in an argument"),
        ("--add-host", "db:192.0.2.7", ("{dns}",), "--add-host has no effect: expected {hosts} in an argument"),
        ("--add-host", "db:127.0.0.1", ("{hosts}",), "host 'db:127.0.0.1' is not usable"),
        ("--dns", "; rm", ("{dns}",), "name server '; rm' is not usable"),
        ("--dns-search", "a\nb", ("{search}",), "search domain 'a\\nb' is not a domain name"),
        ("--ntp", "192.0.2.123", ("{dns}",), "--ntp has no effect: expected {ntp} in an argument of the guest"),
        ("--ntp", "::1", ("{ntp}",), "NTP server '::1' is not usable: expected the address of another machine"),
        ("--hostname", "a b", ("{hostname}",), "host name 'a b' is not a domain name"),
        *(
            (f"--{option}", "", (), f"--{option} '' ")
            for option in "cpus memory memory-max cpu-weight tender network-namespace idle idle-action".split()
        ),
    ],
)
def test_an_option_without_effect_or_value_is_refused(
    solo5ctl: Solo5ctl, option: str, value: str, arguments: tuple[str, ...], words: str
) -> None:
    result = solo5ctl("run", "-d", option, value, "a.hvt", *arguments)
    assert (result.status, solo5ctl.engine.workloads) == (125, [])
    assert words in result.err


def test_two_tasks_without_a_name_have_different_ones(solo5ctl: Solo5ctl) -> None:
    names = {solo5ctl("run", "-d", "hello.spt").out for _ in range(4)}
    assert len(names) == 4


def test_detached_json_is_the_task(solo5ctl: Solo5ctl) -> None:
    assert json.loads(solo5ctl("run", "-d", "--json", "--name", "web", "a.hvt").out)["name"] == "web"


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome(ending=Ending.OUT_OF_MEMORY, signal=9, sentence="OOM-killed"), 137),
        (Outcome(ending=Ending.ABORTED, exit_code=255, sentence="the guest aborted"), 255),
        (Outcome(ending=Ending.TRAPPED, signal=11, sentence="the guest trapped"), 139),
        (Outcome(ending=Ending.UNKNOWN, sentence="ended"), 125),
    ],
)
def test_an_outcome_that_the_console_does_not_show_is_written_to_stderr(
    solo5ctl: Solo5ctl, outcome: Outcome, status: int
) -> None:
    solo5ctl.engine.outcome = outcome
    result = solo5ctl("run", "--name", "web", "a.spt")
    assert (result.status, result.err) == (status, f"solo5ctl: web: {outcome.sentence}\n")


def test_an_error_of_the_tender_is_exit_status_126_with_its_message(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.lines = [line("solo5-spt: bad image", Stream.STDERR)]
    solo5ctl.engine.outcome = Outcome(ending=Ending.TENDER_REFUSED, exit_code=1, sentence="the tender refused")
    result = solo5ctl("run", "a.spt")
    assert (result.status, result.err) == (126, "solo5-spt: bad image\n")


def test_replace_removes_a_task_of_the_same_name(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.known |= {task.name: task for task in (running("web"),)}
    assert solo5ctl("run", "-d", "--replace", "--name", "web", "a.spt").status == 0
    assert solo5ctl.engine.calls == [("remove", "web", True)]
    assert solo5ctl("run", "-d", "--replace", "--name", "new", "a.spt").status == 0


def test_a_declared_task_is_not_removed_for_a_start_that_is_refused(
    solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "is_declared", lambda _: True)
    result = solo5ctl("run", "--replace", "--name", "web", "a.spt")
    assert result.err.startswith("solo5ctl: task name 'web' is that of a declared task: expected another one.")
    assert solo5ctl.engine.calls == []


@pytest.mark.parametrize("signal", run_modes.FORWARDED_SIGNALS)
def test_a_signal_stops_the_task(solo5ctl: Solo5ctl, signal: signals.Signals) -> None:
    engine = solo5ctl.engine
    engine.outcome, engine.listens = None, True
    engine.on_console = lambda: os.kill(os.getpid(), signal)
    result = solo5ctl("run", "--name", "web", "a.spt")
    assert (result.status, result.err) == (1, "")
    assert ("stop", "web", signal, 10.0) in engine.calls


def test_a_second_signal_kills_the_task(solo5ctl: Solo5ctl) -> None:
    engine = solo5ctl.engine
    engine.outcome = None

    def twice() -> None:
        os.kill(os.getpid(), signals.SIGINT)
        os.kill(os.getpid(), signals.SIGTERM)

    engine.on_console = twice
    assert solo5ctl("run", "--name", "web", "a.spt").status == 137
    assert ("kill", "web", signals.SIGKILL) in engine.calls


@pytest.mark.parametrize(("signal", "status"), [(signals.SIGINT, 130), (signals.SIGTERM, 143)])
def test_a_signal_during_the_start_cancels_it(solo5ctl: Solo5ctl, signal: signals.Signals, status: int) -> None:
    solo5ctl.engine.on_start = lambda: os.kill(os.getpid(), signal)
    assert solo5ctl("run", "--name", "web", "a.spt").status == status
    assert solo5ctl.engine.known == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Solo5Error("a."), 125),
        (HostError("a."), 125),
        (TakenError("a."), 125),
        (ImageError("a."), 126),
        (StartError("a."), 126),
        (NotFoundError("a."), 127),
    ],
)
@pytest.mark.parametrize("words", [[], ["-d"]])
def test_a_start_that_fails_has_the_status_of_its_error(
    solo5ctl: Solo5ctl, error: Solo5Error, status: int, words: list[str]
) -> None:
    solo5ctl.engine.refusal = error
    result = solo5ctl("run", *words, "a.spt")
    assert (result.status, result.out, result.err) == (status, "", "solo5ctl: a.\n")


LIMITED = "-m 64M --cpus 1 --cpu-weight 50 --property TasksMax=32 --property IOWeight=10 --property Nice=1"


@pytest.mark.parametrize("way", ["", "-d "])
def test_limits_that_are_not_enforced_are_named_once(solo5ctl: Solo5ctl, way: str) -> None:
    solo5ctl.engine.machine.usages.enabled = ("cpu", "cpuset")
    result = solo5ctl("run", *f"{way}{LIMITED} a.spt".split())
    assert (result.status, len(solo5ctl.engine.workloads)) == (0, 1)
    assert result.err == (
        "solo5ctl: warning: limits not enforced: MemoryMax, TasksMax, IOWeight; cgroup v2 controllers not available: "
        "memory, pids, io; see solo5ctl doctor.\n"
    )


def test_limits_of_a_scope_that_are_not_enforced_are_named(solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_modes, "execute", lambda line: None)
    solo5ctl.engine.machine.usages.enabled = ()
    assert "limits not enforced: CPUQuota;" in solo5ctl("run", "--scope", "--cpus", "1", "a.spt").err


@pytest.mark.parametrize(("enabled", "words"), [((), ""), (("cpu", "cpuset", "io", "memory", "pids"), LIMITED)])
def test_there_is_no_warning_if_all_limits_are_enforced(
    solo5ctl: Solo5ctl, enabled: tuple[str, ...], words: str
) -> None:
    solo5ctl.engine.machine.usages.enabled = enabled
    assert solo5ctl("run", *words.split(), "a.spt").err == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--detach --scope a", "--detach and --scope are mutually exclusive"),
        ("--idle 1h --idle-action stop a", "--idle-action stop is for declared tasks: expected sleep"),
        ("--detach --rm a", "--rm and --detach are mutually exclusive"),
        ("--scope --rm a", "--rm and --scope are mutually exclusive"),
        ("--json a", "--json requires --dry-run or --detach"),
        ("--net a=x --net a=y i", "NIC a is given twice"),
        ("--block a=x --block a=y i", "disk a is given twice"),
        ("-p 80-90:80-90 -p 85:1 i", "published port 0.0.0.0:85/tcp is given twice"),
        ("-p 80:80 -p 0.0.0.0:80:81 i", "published port 0.0.0.0:80/tcp is given twice"),
        ("--name ../x i", "task name '../x' is not usable"),
        ("--publish 0:80 i", "--publish '0:80': port 0 does not exist"),
        ("--property User=root i", "--property 'User=root': unit property 'User' cannot be set"),
        ("--tender xen i", "--tender 'xen' is unknown: expected hvt or spt."),
        ("--nonsense i", "run: unrecognized arguments: --nonsense."),
        ("", "run: the following arguments are required: IMAGE"),
        ("--name", "run: --name: expected one argument"),
    ],
)
def test_an_invalid_request_is_refused_before_the_engine_is_called(
    solo5ctl: Solo5ctl, words: str, sentence: str
) -> None:
    result = solo5ctl("run", *words.split())
    assert result.status == 125
    assert result.err.startswith(f"solo5ctl: {sentence}")
    assert solo5ctl.engine.workloads == []


@pytest.mark.parametrize("option, value", [("--dns", "9.9.9.9"), ("--dns-search", "lan"), ("--hostname", "shop")])
def test_with_dhcp_an_option_needs_no_argument(
    solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    settings = parse_settings({"network": {"served": {"dhcp": True}}})
    monkeypatch.setattr(run, "read_settings", lambda: settings)
    assert solo5ctl("run", "-d", "--net", "service=served", option, value, "a.hvt").status == 0
    assert "has no effect" in solo5ctl("run", "-d", option, value, "a.hvt").err
    host = solo5ctl("run", "-d", "--net", "service=served", option, value, "--add-host", "db:192.0.2.7", "a.hvt")
    assert "--add-host has no effect" in host.err, "of which DHCP has none"


PLAN = replace(
    planned("service"),
    workload=Workload(name=TaskName("web"), image="/srv/web.hvt", arguments=("two words",), memory=64 << 20),
    reservation=Reservation(task=TaskName("web"), leases=(LEASE,), ports=PORTS),
    nft="add element a\nadd element b\n",
)

TEXT = """\
# command line
@COMMAND@

# leases
service on default: 10.89.0.2/24, gateway 10.89.0.1, MAC 02:00:5e:10:00:01, MTU 1500, s5-1f00c0de in solo5-default

# ports
0.0.0.0:8080->80/tcp (service)
127.0.0.1:53->53/udp (service)

# nftables
add element a
add element b
"""


def test_a_plan_is_text(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.plan = PLAN
    result = solo5ctl("run", "--dry-run", "--name", "web", "web.hvt", "two words")
    unit, rest = result.out.split("\n\n", 1)
    assert (result.status, rest, result.err) == (0, TEXT.replace("@COMMAND@", shlex.join(PLAN.argv)), "")
    assert unit.startswith("# solo5-task-web.service\nDescription=Solo5 unikernel web.hvt (hvt)\n")
    assert {"MemoryMax=64M", "User=61200"} < set(unit.splitlines())
    assert solo5ctl.engine.known == {}


def test_a_plan_is_json(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.plan = PLAN
    document = json.loads(solo5ctl("run", "--dry-run", "--json", "web.hvt").out)
    assert document["unit"] == "solo5-task-web.service"
    assert list(document["properties"]) == [each.name for each in PLAN.unit.properties]
    assert "SOLO5_TASK=web" in document["properties"]["LogExtraFields"]
    assert document["argv"] == list(PLAN.argv)
    assert document["image"] == {"path": PLAN.image.path, "sha256": PLAN.image.sha256}
    assert document["tender"] == "/usr/bin/solo5-hvt"
    assert document["nft"] == PLAN.nft
    assert [nic["nic"] for nic in document["nics"]] == ["service"]
    assert [port["host_port"] for port in document["ports"]] == [8080, 53]
    assert run_modes.plain_value([(b"A=\xff", True, 3, "s")]) == [["A=\\xff", True, 3, "s"]]
