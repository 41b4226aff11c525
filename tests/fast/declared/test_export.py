"""What `solo5ctl export` makes of a task that runs, with `--unit` of the unit file that PID 1 has as well."""

from dataclasses import replace

import pytest
from tests.support.fakes.tasks import FIELDS, LEASE, PORTS

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName
from solo5_systemd.declared.export import RunningTask, exported, exported_unit
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
    assert any("Name servers, search domains" in line for line in found)
    assert "Label=TEAM=a" in found
    assert not any(line.startswith(("Exec", "NetworkNamespace", "LogField")) for line in found)


def test_a_namespace_of_an_operator_is_kept() -> None:
    fields = {**FIELDS, "SOLO5_NETWORK_NAMESPACE": "/run/netns/web"}
    assert "NetworkNamespace=/run/netns/web" in lines(replace(TASK, fields=fields, reservation=None))


@pytest.mark.parametrize("task", [replace(TASK, argv=("/bin/true",)), replace(TASK, fields={})])
def test_what_is_no_tender_is_refused(task: RunningTask) -> None:
    with pytest.raises(InvalidRequestError, match="not that of a tender"):
        exported(task)


IMAGE = "/var/lib/solo5/images/0123"
STATIC = RunningTask(
    name=TaskName("web"),
    fields=FIELDS,
    argv=(
        *("/usr/bin/solo5-hvt", "--net:service=tap", "--mem=60", "--", IMAGE),
        *("--name=a b", "50%", "$x", 'say "hi"\n', ""),
    ),
    reservation=Reservation(task=TaskName("web"), leases=(replace(LEASE, limits=Limits(egress=())),), ports=PORTS),
)
TRANSIENT = f"""\
# This is a transient unit file, created programmatically via the systemd API. Do not edit.
[Unit]
Description=Solo5 unikernel web.hvt (hvt)

[Service]
Type=exec
ExecStart=
ExecStart="/usr/bin/solo5-hvt" "--net:service=tap" "--" "{IMAGE}"

[Unit]
Wants=solo5-outcome-declared@web.target
Requires=solo5-network@web.service
After=solo5-network@web.service network-online.target

[Service]
User=63593
MemoryMax=67108864
BindReadOnlyPaths=/usr/bin/solo5-hvt:/usr/bin/solo5-hvt:norbind
BindReadOnlyPaths={IMAGE}:{IMAGE}:norbind
BindPaths=/run/solo5/disks/1:/run/solo5-disks/data:norbind
IPAddressDeny=
IPAddressDeny=0.0.0.0/0
"""
DISK = {"disk": "data", "backing": "file", "path": "/srv/my disk:1.img"}


def unit_lines(task: RunningTask = STATIC, text: str = TRANSIENT) -> list[str]:
    return exported_unit(task, text).splitlines()


def test_the_sandbox_is_what_pid_1_has_and_what_each_start_makes_is_written_out() -> None:
    found = unit_lines()
    assert [line for line in found if line.startswith("[")] == ["[Unit]", "[Service]", "[Install]"]
    assert found.index("Description=Solo5 unikernel web.hvt (hvt)") < found.index("[Service]")
    assert "After=network-online.target" in found
    assert not [line for line in found if "solo5-outcome" in line or line.startswith("Requires=")]
    assert {"Type=exec", "MemoryMax=67108864", "User=solo5", "IPAddressDeny=", "IPAddressDeny=0.0.0.0/0"} <= set(found)
    assert "BindReadOnlyPaths=/usr/bin/solo5-hvt:/usr/bin/solo5-hvt:norbind" in found
    assert f"BindReadOnlyPaths=/srv/web.hvt:{IMAGE}:norbind" in found
    [start] = [line for line in found if line.startswith("ExecStart=")]
    assert start == (
        f'ExecStart=/usr/bin/solo5-hvt --net:service=tap --mem=60 -- {IMAGE} "--name=a b" 50%% $$x "say \\"hi\\"\\n" ""'
    )
    assert found[-1] == "WantedBy=multi-user.target"


@pytest.mark.parametrize("quote", ["", '"'])
def test_the_launcher_stays(quote: str) -> None:
    old = 'ExecStart="/usr/bin/solo5-hvt"'
    assert old in TRANSIENT
    new = f'ExecStart=@{quote}/usr/libexec/solo5-confine{quote} "/usr/bin/solo5-hvt"'
    [start] = [line for line in unit_lines(text=TRANSIENT.replace(old, new)) if line.startswith("ExecStart=")]
    assert start.startswith("ExecStart=@/usr/libexec/solo5-confine /usr/bin/solo5-hvt --net:service=tap ")


def test_no_argument_image_or_label_of_a_job_begins_a_line_of_its_own() -> None:
    """systemd ends a line at a carriage return and at a NUL as well; Python at some more characters."""
    ends = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    evil = "".join(f"{end}ExecStartPre=+/bin/evil" for end in ends)
    task = replace(STATIC, argv=(*STATIC.argv, evil), fields={**FIELDS, "SOLO5_IMAGE": f"/srv/{evil}"})
    text = exported_unit(task, f"{TRANSIENT}[Service]\nLogExtraFields=NOTE={evil.replace(chr(13), '')}\n")
    assert "\r" not in text
    assert [line for line in text.split("\n") if line.startswith("ExecStartPre=+/bin/evil")] == []


def test_a_disk_is_bound_from_its_own_path_and_has_the_user() -> None:
    found = unit_lines(replace(STATIC, disks=(DISK,)))
    assert 'ExecStartPre=+/usr/bin/chown solo5 "/srv/my disk:1.img"' in found
    assert 'BindPaths="/srv/my disk\\:1.img":/run/solo5-disks/data:norbind' in found
    assert "# Its disks are not locked: nothing else may write to them." in found


def test_of_a_declared_task_what_its_start_prepares_is_left_out() -> None:
    text = (
        "[Unit]\nSourcePath=/etc/solo5/web.unikernel\n"
        "Wants=solo5-prepare@web.service solo5-outcome-declared@web.target\n"
        "After=solo5-prepare@web.service\nAfter=a.target\nAssertPathExists=/run/solo5/declared/web/environment\n"
        "[Service]\nEnvironmentFile=/run/solo5/declared/web/environment\nExecStart=/usr/bin/solo5-hvt $SOLO5_DEVICES\n"
        "ExecReload=+/bin/sh\nStandardError=truncate:/run/solo5/declared/web/tender/stderr\nRestart=on-failure\n"
        "[Install]\nWantedBy=web.target\n"
    )
    found = unit_lines(STATIC, text)
    assert not [line for line in found if "/run/solo5/declared" in line or "/etc/solo5" in line or "prepare" in line]
    assert {"After=a.target", "Restart=on-failure", "WantedBy=web.target"} <= set(found)
    assert "WantedBy=multi-user.target" not in found


def test_what_ends_with_a_task_of_nomad_is_reported() -> None:
    assert "Nomad" in exported_unit(replace(STATIC, fields={**FIELDS, "NOMAD_JOB_NAME": "web"}), TRANSIENT)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (replace(STATIC, disks=({**DISK, "backing": "archive"},)), "disk data of task web is made at each start"),
        (replace(STATIC, disks=({**DISK, "backing": "private copy"},)), "disk data of task web is made at each start"),
        (replace(STATIC, fields={**FIELDS, "SOLO5_NETWORK_NAMESPACE": "/run/netns/x"}), "is in a namespace"),
        (replace(STATIC, name=TaskName("web@1")), "is an instance of a template"),
    ],
)
def test_what_a_static_unit_cannot_have_is_refused(task: RunningTask, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        exported_unit(task, TRANSIENT)
