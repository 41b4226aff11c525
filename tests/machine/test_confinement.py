"""What a tender may do, shown on running ones."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    Machine,
    Runner,
    eventually,
    exposure,
    inspect,
    logged,
    ok,
    says,
    sh,
    unit_property,
)
from tests.machine.declared import Declarations

KERNELS = ("proc", "dev", "sys")


def files_of(pid: int) -> set[str]:
    """Every file with content in a process's root, the kernel's own file systems apart."""
    root = Path(f"/proc/{pid}/root")
    found = set()
    for directory, below, files in os.walk(root):
        below[:] = [each for each in below if Path(directory, each) not in {root / name for name in KERNELS}]
        paths = [Path(directory, each) for each in files]
        found |= {f"/{path.relative_to(root)}" for path in paths if path.stat().st_size}
    return found


@pytest.fixture(params=["sleeper.hvt", "net.spt"])
def running(request: pytest.FixtureRequest, run: Runner) -> str:
    guest: str = request.param
    name = run(guest)
    says(name, "sleeping" if guest.startswith("sleeper") else "02:")
    return name


def status(name: str) -> dict[str, str]:
    text = Path(f"/proc/{inspect(name)['pid']}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def test_exposure_is_1_or_less(running: str) -> None:
    """A task without NIC has 0.4 at most; a systemd before 257 has no PrivateTmp= that leaves the host's /tmp alone."""
    unit = f"solo5-task-{running}.service"
    older = 0.2 if int(ok("systemctl", "--version").split()[1]) < 257 else 0
    assert exposure(unit) <= (1.0 if inspect(running)["nics"] else 0.4) + older
    assert json.loads(ok("systemd-analyze", "security", "--json=short", unit))


def test_neither_root_nor_capable(running: str) -> None:
    facts = status(running)
    assert "0" not in facts["Uid"].split()
    assert "0" not in facts["Gid"].split()
    assert all(int(facts[key], 16) == 0 for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert b"HOME=/root" not in Path(f"/proc/{inspect(running)['pid']}/environ").read_bytes()


def test_sees_only_what_it_needs(running: str) -> None:
    task = inspect(running)
    root = Path(f"/proc/{task['pid']}/root")
    image = f"/var/lib/solo5/images/{task['image_sha256']}"
    programs = {f"/usr/local/bin/solo5-{task['tender']}", "/usr/libexec/solo5-confine"}
    assert files_of(task["pid"]) == {*programs, image}, "the tender is a static program"
    assert [p.name for p in (root / "var/lib/solo5/images").iterdir()] == [task["image_sha256"]]
    assert not [*(root / "sys").glob("*"), *(root / "dev/shm").glob("*"), *(root / "dev/pts").glob("*")]
    assert not any((root / path).exists() for path in ("tmp", "var/tmp", "home", "run/systemd/journal", "usr/bin"))
    harmless = {"full", "null", "ptmx", "random", "tty", "urandom", "zero"}
    below = [*(root / "dev").iterdir(), *(root / "dev/net").glob("*")]
    nodes = {p.name for p in below if p.is_char_device() and not p.is_symlink()}
    assert nodes - harmless <= {"kvm", "tun"}
    assert not [p for p in below if p.is_block_device()]
    mounted = [line.split() for line in Path(f"/proc/{task['pid']}/mounts").read_text().splitlines()]
    options = {point: set(flags.split(",")) for _, point, _, flags, *_ in mounted}
    assert {"ro", "noexec", "nosuid", "nodev"} <= options["/"]
    executable = {point for point, flags in options.items() if "noexec" not in flags and (root / point[1:]).is_file()}
    assert executable == programs


def test_profile_is_never_left_out_without_a_word(machine: Machine) -> None:
    """systemd ignores AppArmorProfile= where AppArmor is not enabled; where it is, this profile is not loaded."""
    guest = f"{GUESTS}/hello.spt"
    enabled = Path("/sys/module/apparmor/parameters/enabled")
    status, words = (
        (126, "did not start")
        if enabled.exists() and enabled.read_text().strip() == "Y"
        else (125, "unit property AppArmorProfile has no effect on this host: expected a kernel with apparmor enabled")
    )
    done = sh("solo5ctl", "run", "--rm", "--property", "AppArmorProfile=absent", guest)
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr
    assert sh("solo5ctl", "run", "--rm", "--property", "AppArmorProfile=-absent", guest).returncode == 0


def test_our_own_services_are_limited(machine: Machine) -> None:
    for service in ("solo5-networkd", "solo5-relay", "solo5-metrics"):
        found = [unit_property(f"{service}.service", name) for name in ("MemoryMax", "TasksMax")]
        assert found == [str(512 << 20), "64"], service


ALL, HIDDEN = Path("/etc/systemd/system/service.d/all.conf"), Path("/etc/systemd/system")


@pytest.fixture
def all_services() -> Iterator[None]:
    """Every service of the machine has a drop-in."""
    ALL.parent.mkdir()
    ALL.write_text("[Service]\nMemoryHigh=1G\nUser=root\nRestart=on-failure\n")
    ok("systemctl", "daemon-reload")
    yield
    for path in HIDDEN.glob("*.d/all.conf"):
        path.unlink()
        path.parent.rmdir()
    ok("systemctl", "daemon-reload")


def hide(text: str) -> None:
    """Type what is said."""
    [command] = re.findall(r"Hide it: (mkdir -p \S+ && ln -s /dev/null \S+)", " ".join(text.split()))
    ok("sh", "-c", command)
    ok("systemctl", "daemon-reload")


def test_one_that_changes_the_sandbox_refuses_starts_until_it_is_hidden(all_services: None, run: Runner) -> None:
    refused = run.fail("--detach", f"{GUESTS}/sleeper.spt")
    assert refused.returncode == 125
    assert f"drop-in {ALL} sets User= of solo5-task-" in refused.stderr
    doctor = sh("solo5ctl", "doctor")
    assert doctor.returncode == 1
    assert f"drop-in {ALL} sets User= of solo5-task-*.service" in " ".join(doctor.stdout.split())
    hide(refused.stderr)
    assert sh("solo5ctl", "doctor").returncode == 0
    unit = inspect(run("sleeper.spt"))["unit"]
    assert unit_property(unit, "User") != "root"
    assert unit_property(unit, "Restart") == "no"


def test_one_that_changes_the_sandbox_of_a_declared_task_refuses_its_start_until_it_is_hidden(
    all_services: None, declare: Declarations
) -> None:
    unit = declare("web", "", image="sleeper.spt")
    assert sh("systemctl", "start", unit).returncode == 1
    doctor = " ".join(sh("solo5ctl", "doctor").stdout.split())
    [said] = re.findall(rf"drop-in {ALL} sets User= of {unit}.*?/all.conf(?= |$)", doctor)
    logged("sets User=", "-u", "solo5-prepare@web")
    hide(said)

    def starts() -> bool:
        # By Restart= of the drop-in the preparation is repeated, too: one from before may still be refused.
        sh("systemctl", "reset-failed", unit, "solo5-prepare@web")
        return sh("systemctl", "start", unit).returncode == 0

    eventually(starts, "it starts once the drop-in is hidden")
    assert unit_property(unit, "User") != "root"
