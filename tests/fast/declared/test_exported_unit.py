"""What `solo5ctl export --unit` makes of a task that runs and of the unit file that PID 1 has."""

from dataclasses import replace

import pytest
from tests.support.fakes.tasks import FIELDS, LEASE, PORTS

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName
from solo5_systemd.declared.export import RunningTask, exported_unit
from solo5_systemd.network.model import Limits, Reservation

IMAGE = "/var/lib/solo5/images/0123"
TASK = RunningTask(
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


def lines(task: RunningTask = TASK, text: str = TRANSIENT) -> list[str]:
    return exported_unit(task, text).splitlines()


def test_the_sandbox_is_what_pid_1_has_and_what_each_start_makes_is_written_out() -> None:
    found = lines()
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
    [start] = [line for line in lines(text=TRANSIENT.replace(old, new)) if line.startswith("ExecStart=")]
    assert start.startswith("ExecStart=@/usr/libexec/solo5-confine /usr/bin/solo5-hvt --net:service=tap ")


def test_no_argument_image_or_label_of_a_job_begins_a_line_of_its_own() -> None:
    """systemd ends a line at a carriage return and at a NUL as well; Python at some more characters."""
    ends = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    evil = "".join(f"{end}ExecStartPre=+/bin/evil" for end in ends)
    task = replace(TASK, argv=(*TASK.argv, evil), fields={**FIELDS, "SOLO5_IMAGE": f"/srv/{evil}"})
    text = exported_unit(task, f"{TRANSIENT}[Service]\nLogExtraFields=NOTE={evil.replace(chr(13), '')}\n")
    assert "\r" not in text
    assert [line for line in text.split("\n") if line.startswith("ExecStartPre=+/bin/evil")] == []


def test_without_nics_nothing_of_the_network_is_there() -> None:
    found = exported_unit(replace(TASK, reservation=None), TRANSIENT)
    assert "Network1" not in found
    assert "solo5-network" not in found.partition("\n\n")[2]


def test_a_disk_is_bound_from_its_own_path_and_has_the_user() -> None:
    found = lines(replace(TASK, disks=(DISK,)))
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
    found = lines(TASK, text)
    assert not [line for line in found if "/run/solo5/declared" in line or "/etc/solo5" in line or "prepare" in line]
    assert {"After=a.target", "Restart=on-failure", "WantedBy=web.target"} <= set(found)
    assert "WantedBy=multi-user.target" not in found


def test_what_ends_with_a_task_of_nomad_is_reported() -> None:
    assert "Nomad" in exported_unit(replace(TASK, fields={**FIELDS, "NOMAD_JOB_NAME": "web"}), TRANSIENT)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (replace(TASK, disks=({**DISK, "backing": "archive"},)), "disk data of task web is made at each start"),
        (replace(TASK, disks=({**DISK, "backing": "private copy"},)), "disk data of task web is made at each start"),
        (replace(TASK, fields={**FIELDS, "SOLO5_NETWORK_NAMESPACE": "/run/netns/x"}), "is in a namespace"),
        (replace(TASK, name=TaskName("web@1")), "is an instance of a template"),
    ],
)
def test_what_a_static_unit_cannot_have_is_refused(task: RunningTask, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        exported_unit(task, TRANSIENT)
