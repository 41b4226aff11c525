"""`export`: the declaration that is made of a task that runs, and what is refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.support.fakes.tasks import FIELDS, LEASE, STARTED, ended, running

from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.names import NetworkName, UnitKind
from solo5_systemd.cli.verbs import export
from solo5_systemd.declared import files
from solo5_systemd.engine.task import Task
from solo5_systemd.network.model import Limits, Reservation
from solo5_systemd.storage.locks import Record

TENDER = ("/usr/bin/solo5-hvt", "--net:service=tap", "--block:data=/run/solo5-disks/data", "--mem=60", "--", "/image")
MIRAGE = ("--ipv4=10.89.0.2/24", "--ipv4-gateway=10.89.0.1")
TASK = running(networked=True)

Export = Callable[..., list[str]]


@pytest.fixture
def export_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    def lines(
        task: Task = TASK,
        arguments: Sequence[str] = (),
        *,
        argv: Sequence[str] = TENDER,
        disks: Sequence[dict[str, str]] = (),
        memory_max: str = "67108864",
        cpu_max: str = "max 100000",
        cpu_weight: str = "100",
    ) -> list[str]:
        """Return the lines of the declaration; an empty limit: its controller is not available."""
        process, group = tmp_path / str(task.state.main_pid), tmp_path / task.state.control_group.lstrip("/")
        for directory in (process, group):
            directory.mkdir(parents=True, exist_ok=True)
        (process / "cmdline").write_text("\0".join((*argv, *arguments, "")))
        for name, text in (("memory.max", memory_max), ("cpu.max", cpu_max), ("cpu.weight", cpu_weight)):
            (group / name).unlink(missing_ok=True)
            if text:
                (group / name).write_text(f"{text}\n")
        monkeypatch.setattr(export, "records_of_tasks", lambda: {task.name: Record(disks=disks)} if disks else {})
        return [line for line in export.exported(task).splitlines() if line]

    monkeypatch.setattr(export, "unified", lambda: str(tmp_path))
    monkeypatch.setattr(export, "_PROC", str(tmp_path))
    return lines


def with_fields(**fields: str) -> Task:
    return TASK._replace(state=TASK.state._replace(log_fields={**FIELDS, **fields}))


def test_a_task_is_what_was_typed_to_start_it(export_lines: Export) -> None:
    assert export_lines(TASK, (*MIRAGE, "--name=a b", "")) == [
        "# Task web as it runs, written by solo5ctl export.",
        "# Unit properties of --property or of a job are not known here: systemctl show has them.",
        "[Unikernel]",
        "Image=/srv/web.hvt",
        'Argument={mirage} "--name=a b" ""',
        "Tender=hvt",
        "Memory=64M",
        "Network=service=default",
        "Publish=service:8080:80/tcp",
        "Publish=service:127.0.0.1:53:53/udp",
        "[Install]",
        "WantedBy=multi-user.target",
    ]


def test_limits_are_those_of_the_cgroup_and_the_lease(export_lines: Export) -> None:
    limits = Reservation(task=TASK.name, leases=(replace(LEASE, limits=Limits(egress=())),))
    found = export_lines(TASK._replace(reservation=limits), memory_max="max", cpu_max="150000 100000", cpu_weight="7")
    assert [line for line in found if line.startswith(("MemoryMax", "CPU", "Egress"))] == [
        "MemoryMax=infinity",
        "CPUs=1.5",
        "CPUWeight=7",
        "Egress=service=none",
    ]
    assert "MemoryMax=96M" in export_lines(memory_max=str(96 << 20))
    found = export_lines(memory_max="", cpu_max="", cpu_weight="")
    assert not any(line.startswith(("MemoryMax", "CPU")) for line in found)


def test_an_idle_time_is_that_of_the_task(export_lines: Export) -> None:
    for stops, expected in ((False, ["IdleSec=60"]), (True, ["IdleSec=60", "IdleAction=stop"])):
        held = Reservation(task=TASK.name, leases=(LEASE,), idle_s=60, idle_stops=stops)
        found = export_lines(TASK._replace(reservation=held))
        assert [line for line in found if line.startswith("Idle")] == expected
    assert not any(line.startswith("Idle") for line in export_lines(running()))


def test_an_address_that_stays_in_an_argument_is_requested(export_lines: Export) -> None:
    found = export_lines(TASK, ("--ip=10.89.0.2", "{x}"))
    assert "Argument=--ip=10.89.0.2 {{x}}" in found
    assert "Network=service=default,ip=10.89.0.2" in found
    assert "# An address is in Argument= literally, so it is requested in Network=." in found


def test_disks_are_files_named_disks_and_copies_and_others_are_comments(export_lines: Export) -> None:
    disks = [
        {"disk": "a", "backing": "file", "path": "/srv/a, b.img", "io": "read_bps=10M write_iops=500"},
        {"disk": "b", "backing": "named disk", "path": "/var/lib/solo5/disks/web"},
        {"disk": "c", "backing": "private copy", "path": "/var/lib/solo5/disks/web"},
        {"disk": "d", "backing": "archive", "path": "app.toml"},
    ]
    sectors = [f"--block-sector-size:{name}={size}" for name, size in (("a", 4096), ("b", 512), ("d", 512), ("e", 512))]
    found = export_lines(argv=("/hvt", *sectors, "--", "/image"), disks=disks)
    assert [line for line in found if "Block=" in line] == [
        "# Disk d is an archive of app.toml: add Block=d=files:PATH.",
        "# Disk e is not known: add Block=e=FILE.",
        "Block=a=/srv/a, b.img,sector-size=4096,read_bps=10M,write_iops=500",
        "Block=b=disk:web",
        "Block=c=disk:web,ephemeral",
    ]


@pytest.mark.parametrize("name", ["a.img,ephemeral", "a.img,sector-size=4096", "a.img,read_bps=1M"])
def test_the_name_of_a_file_has_no_options(export_lines: Export, name: str) -> None:
    """A job chooses it. The declaration would be of another file."""
    with pytest.raises(InvalidRequestError, match="a declaration cannot describe its disks"):
        export_lines(disks=[{"disk": "a", "backing": "file", "path": f"/srv/{name}"}])


def test_a_task_of_nomad_has_its_job_in_comments_and_its_labels(export_lines: Export) -> None:
    nomad = {"NOMAD_JOB_NAME": "site", "NOMAD_GROUP_NAME": "g\nExecStart=", "NOMAD_TASK_NAME": "web", "TEAM": "a"}
    namespace = {"SOLO5_NETWORK_NAMESPACE": "/var/run/netns/x", "SOLO5_DNS": "9.9.9.9"}
    inside = Reservation(task=TASK.name, leases=(replace(LEASE, network=NetworkName("namespace")),))
    found = export_lines(with_fields(**nomad, **namespace)._replace(reservation=inside))
    assert "Network=service=default" in found
    assert any(line.startswith("# It is a task of Nomad (site/g\\x0aExecStart=/web)") for line in found)
    assert (
        "# It shares the network namespace /var/run/netns/x with its group, which ends with the allocation: left out."
        in found
    )
    assert any("name servers, search domains" in line for line in found)
    assert "Label=TEAM=a" in found
    assert not any(line.startswith(("Exec", "NetworkNamespace", "LogField")) for line in found)


def test_a_namespace_of_an_operator_is_kept(export_lines: Export) -> None:
    task = with_fields(SOLO5_NETWORK_NAMESPACE="/run/netns/web")._replace(reservation=None)
    assert "NetworkNamespace=/run/netns/web" in export_lines(task)


def test_what_is_no_tender_is_refused(export_lines: Export) -> None:
    for task, argv in ((TASK, ("/bin/true",)), (with_fields(SOLO5_IMAGE=""), TENDER)):
        with pytest.raises(InvalidRequestError, match="task web runs no tender"):
            export_lines(task, argv=argv)


@pytest.mark.usefixtures("export_lines")
def test_a_task_that_has_ended_meanwhile_is_one_sentence() -> None:
    with pytest.raises(HostError, match="the command line of task web cannot be read: No such file"):
        export.exported(TASK)


def test_only_services_that_run_are_exported_by_root(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.known = {task.name: task for task in (ended("old"), running("web", kind=UnitKind.SCOPE))}
    assert "does not run" in solo5ctl("export", "old").err
    assert "is a scope" in solo5ctl("export", "web").err
    assert "no task is named" in solo5ctl("export", "none").err
    assert "requires root" in solo5ctl("export", "web", root=False).err


def test_a_dormant_task_is_its_declaration(solo5ctl: Solo5ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "read_sources", partial(files.read_sources, directory=tmp_path))
    (tmp_path / "old.unikernel.d").mkdir()
    for name, text in (("", "# mine\n[Unikernel]\nImage=/srv/old.hvt"), (".d/50-a.conf", "[Service]\nTasksMax=7\n")):
        (tmp_path / f"old.unikernel{name}").write_text(text)
    solo5ctl.engine.known = {task.name: task for task in (ended("old")._replace(asleep=STARTED),)}
    result = solo5ctl("export", "old")
    assert (result.status, result.err) == (0, "")
    assert [line for line in result.out.splitlines() if line] == [
        *(f"# {tmp_path}/old.unikernel", "# mine", "[Unikernel]", "Image=/srv/old.hvt"),
        *(f"# {tmp_path}/old.unikernel.d/50-a.conf", "[Service]", "TasksMax=7"),
    ]
    (tmp_path / "old.unikernel").unlink()
    assert "there is no declaration 'old'" in solo5ctl("export", "old").err
