"""What `solo5ctl export` makes of a task that runs."""

from dataclasses import replace

import pytest
from tests.support.fakes.tasks import FIELDS, LEASE, PORTS

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName
from solo5_systemd.declared.export import RunningTask, exported
from solo5_systemd.network.model import Limits, Reservation
from solo5_systemd.task.property_types import INFINITY

TENDER = ("/usr/bin/solo5-hvt", "--net:service=tap", "--block:data=/run/solo5-disks/data", "--mem=60", "--", "/image")
TASK = RunningTask(
    name=TaskName("web"),
    fields=FIELDS,
    argv=(*TENDER, "--ipv4=10.89.0.2/24", "--ipv4-gateway=10.89.0.1", "--name=a b"),
    reservation=Reservation(task=TaskName("web"), leases=(LEASE,), ports=PORTS),
    memory_max=64 << 20,
    cpu_weight=100,
)


def lines(task: RunningTask) -> list[str]:
    return [line for line in exported(task).splitlines() if line]


def test_a_task_is_what_was_typed_to_start_it() -> None:
    assert lines(TASK) == [
        "# Task web as it runs, written by solo5ctl export.",
        "# Unit properties of --property or of a job are not known here: systemctl show has them.",
        "[Unikernel]",
        "Image=/srv/web.hvt",
        'Argument={mirage} "--name=a b"',
        "Tender=hvt",
        "Memory=64M",
        "Network=service=default",
        "Publish=service:8080:80/tcp",
        "Publish=service:127.0.0.1:53:53/udp",
        "[Install]",
        "WantedBy=multi-user.target",
    ]


def test_limits_are_those_of_the_cgroup_and_the_lease() -> None:
    limits = Reservation(task=TASK.name, leases=(replace(LEASE, limits=Limits(egress=())),))
    task = replace(TASK, reservation=limits, memory_max=INFINITY, cpus=1.5, cpu_weight=7)
    found = lines(task)
    assert [line for line in found if line.startswith(("MemoryMax", "CPU", "Egress"))] == [
        "MemoryMax=infinity",
        "CPUs=1.5",
        "CPUWeight=7",
        "Egress=service=none",
    ]
    assert "MemoryMax=96M" in lines(replace(TASK, memory_max=96 << 20))
    assert not any(line.startswith("MemoryMax") for line in lines(replace(TASK, memory_max=None)))


def test_an_idle_time_is_that_of_the_task() -> None:
    for stops, expected in ((False, ["IdleSec=60"]), (True, ["IdleSec=60", "IdleAction=stop"])):
        held = Reservation(task=TASK.name, leases=(LEASE,), idle_s=60, idle_stops=stops)
        assert [line for line in lines(replace(TASK, reservation=held)) if line.startswith("Idle")] == expected
    assert not any(line.startswith("Idle") for line in lines(replace(TASK, reservation=None)))


def test_an_address_that_stays_in_an_argument_is_requested() -> None:
    found = lines(replace(TASK, argv=(*TENDER, "--ip=10.89.0.2", "{x}")))
    assert "Argument=--ip=10.89.0.2 {{x}}" in found
    assert "Network=service=default,ip=10.89.0.2" in found
    assert "# An address is in Argument= literally, so it is requested in Network=." in found


def test_disks_are_files_named_disks_and_copies_and_others_are_comments() -> None:
    disks = [
        {"disk": "a", "backing": "file", "path": "/srv/a, b.img", "io": "read_bps=10M write_iops=500"},
        {"disk": "b", "backing": "named disk", "path": "/var/lib/solo5/disks/web"},
        {"disk": "c", "backing": "private copy", "path": "/var/lib/solo5/disks/web"},
        {"disk": "d", "backing": "archive", "path": "app.toml"},
    ]
    sectors = [f"--block-sector-size:{name}={size}" for name, size in (("a", 4096), ("b", 512), ("d", 512), ("e", 512))]
    found = lines(replace(TASK, disks=disks, argv=("/hvt", *sectors, "--", "/image")))
    assert [line for line in found if "Block=" in line] == [
        "# Disk d is an archive of app.toml: add Block=d=files:PATH.",
        "# Disk e is not known: add Block=e=FILE.",
        "Block=a=/srv/a, b.img,sector-size=4096,read_bps=10M,write_iops=500",
        "Block=b=disk:web",
        "Block=c=disk:web,ephemeral",
    ]


@pytest.mark.parametrize("name", ["a.img,ephemeral", "a.img,sector-size=4096", "a.img,read_bps=1M"])
def test_the_name_of_a_file_has_no_options(name: str) -> None:
    """A job chooses it. The declaration would be of another file."""
    with pytest.raises(InvalidRequestError, match="a declaration cannot describe its disks"):
        lines(replace(TASK, disks=[{"disk": "a", "backing": "file", "path": f"/srv/{name}"}]))


def test_a_task_of_nomad_has_its_job_in_comments_and_its_labels() -> None:
    nomad = {"NOMAD_JOB_NAME": "site", "NOMAD_GROUP_NAME": "g\nExecStart=", "NOMAD_TASK_NAME": "web", "TEAM": "a"}
    namespace = {"SOLO5_NETWORK_NAMESPACE": "/var/run/netns/x", "SOLO5_DNS": "9.9.9.9"}
    found = lines(replace(TASK, fields={**FIELDS, **nomad, **namespace}))
    assert any(line.startswith("# It is a task of Nomad (site/g\\x0aExecStart=/web)") for line in found)
    assert (
        "# It shares the network namespace /var/run/netns/x with its group, which ends with the allocation: left out."
        in found
    )
    assert any("name servers, search domains" in line for line in found)
    assert "Label=TEAM=a" in found
    assert not any(line.startswith(("Exec", "NetworkNamespace", "LogField")) for line in found)


def test_a_namespace_of_an_operator_is_kept() -> None:
    fields = {**FIELDS, "SOLO5_NETWORK_NAMESPACE": "/run/netns/web"}
    assert "NetworkNamespace=/run/netns/web" in lines(replace(TASK, fields=fields, reservation=None))


@pytest.mark.parametrize("task", [replace(TASK, argv=("/bin/true",)), replace(TASK, fields={})])
def test_what_is_no_tender_is_refused(task: RunningTask) -> None:
    with pytest.raises(InvalidRequestError, match="task web runs no tender"):
        exported(task)
