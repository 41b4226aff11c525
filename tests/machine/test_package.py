"""The package: what it installs, and that it can come, change and go while tasks run."""

import json
import re
from pathlib import Path

import pytest
from tests.machine.conftest import Machine, Runner, eventually, inspect, ok, says, sh, unit_property
from tests.machine.declared import Declarations, declarations, main_pid

PACKAGE = "solo5-systemd"
UNITS = (
    "solo5-networkd.service",
    "solo5-network@.service",
    "solo5-dhcp@.service",
    "solo5-outcome-declared@.target",
    "solo5-outcome@.target",
    "solo5.slice",
)
DEB = Path("/srv")


def deb() -> str:
    [file] = DEB.glob(f"{PACKAGE}_*.deb")
    return str(file)


def test_units_are_what_systemd_expects(machine: Machine) -> None:
    for unit in UNITS:
        name = unit.replace("@.", "@x.")
        done = sh("systemd-analyze", "verify", "--man=no", f"/usr/lib/systemd/system/{unit}")
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), name


def test_every_file_of_the_package_that_messages_and_manuals_name_is_installed(
    machine: Machine, tmp_path: Path
) -> None:
    """Tenders, and the place where they are looked for, are none of its files. No manual is installed here."""
    ok("dpkg-deb", "--extract", deb(), str(tmp_path))
    texts = [path.read_text() for path in tmp_path.rglob("solo5_systemd/**/*.py")]
    manuals = [*tmp_path.glob("usr/share/man/**/*.gz"), *tmp_path.glob("usr/share/doc/**/*.md*")]
    texts += [ok("zcat", "-f", str(file)).replace("\\-", "-") for file in manuals]
    named = {path.rstrip(".") for text in texts for path in re.findall(r"/usr/[\w./@-]*solo5[\w./@-]*", text)}
    assert {"/usr/lib/sysusers.d/solo5-systemd.conf", "/usr/lib/nomad/plugins/solo5"} < named
    tenders = {"/usr/lib/solo5", "/usr/bin/solo5-hvt", "/usr/bin/solo5-spt"}
    assert [path for path in sorted(named - tenders) if not Path(path).exists()] == []


@pytest.mark.vm  # a container may lack the controllers of cgroup v2
def test_doctor_finds_this_machine_well(machine: Machine) -> None:
    done = sh("/usr/bin/solo5ctl", "doctor", "--json")
    assert [fact for fact in json.loads(done.stdout) if fact["verdict"] == "broken"] == []
    assert done.returncode == 0


@pytest.mark.everywhere
def test_doctor_fails_where_a_fact_is_broken(machine: Machine) -> None:
    done = sh("/usr/bin/solo5ctl", "doctor", "--json")
    facts = {fact["name"]: fact["verdict"] for fact in json.loads(done.stdout)}
    assert {"systemd", "orphans"} <= set(facts)
    assert done.returncode == int("broken" in facts.values())


def test_bash_completes_verbs_options_and_tasks(run: Runner) -> None:
    name = run("sleeper.spt", name="completed")
    assert "inspect" in complete("solo5ctl ins")
    assert "--publish" in complete("solo5ctl run --pub")
    assert name in complete("solo5ctl stop comp")


def complete(line: str) -> str:
    words = line.split(" ")
    script = (
        "source /usr/share/bash-completion/bash_completion; source /usr/share/bash-completion/completions/solo5ctl; "
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'; COMP_POINT={len(line)}; "
        "f=$(complete -p solo5ctl | sed 's/.*-F \\([^ ]*\\).*/\\1/'); $f; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    return ok("bash", "-c", script)


def test_tasks_start_without_the_launcher_and_with_it_again(machine: Machine, run: Runner) -> None:
    """The units of declared tasks follow with its installation and removal; a task that runs goes on."""
    launcher, [file] = "/usr/libexec/solo5-confine", DEB.glob("solo5-confine_*.deb")

    def found() -> tuple[bool, bool, bool]:
        """Whether doctor finds it, and a transient and a declared task have it."""
        name = run("sleeper.spt")
        says(name, "sleeping")
        ok("systemctl", "restart", "confined.service")
        facts = {fact["name"]: fact for fact in json.loads(sh("/usr/bin/solo5ctl", "doctor", "--json").stdout)}
        units = (f"solo5-task-{name}.service", "confined.service")
        started = [f"path={launcher} ;" in unit_property(unit, "ExecStart") for unit in units]
        return facts["solo5-confine"]["verdict"] == "ok", *started

    with declarations() as declare:
        declare("confined", "", image="sleeper.spt")
        before = run("sleeper.spt")
        assert found() == (True, True, True)
        ok("dpkg", "--remove", "solo5-confine", timeout=300)
        assert found() == (False, False, False)
        ok("dpkg", "--install", str(file), timeout=300)
        assert found() == (True, True, True)
        assert inspect(before)["phase"] == "running"


def test_removed_and_purged_while_tasks_run_and_installed_again(
    machine: Machine, run: Runner, declare: Declarations
) -> None:
    machine.expect(r"solo5-\S+\.service")  # PID 1 of a service that is removed while it is in use
    ok("/usr/bin/solo5ctl", "disk", "create", "kept", "1M")
    ok("/usr/bin/solo5ctl", "disk", "snapshot", "kept", "--as", "before", "--copy")
    name = run("tar.spt", "stay", name="survivor", options=("--block", "storage=files:/etc/hostname"))
    says(name, "end at")
    unit = declare("declared", "", image="sleeper.spt")
    ok("systemctl", "start", unit)
    pids = inspect(name)["pid"], main_pid(unit)
    removed = sh("dpkg", "--remove", PACKAGE, timeout=300)
    assert "2 unikernels go on running; stop them with: systemctl stop solo5.slice" in removed.stderr
    assert all(Path(f"/proc/{pid}").exists() for pid in pids), "a running guest outlives the package"
    assert Path("/etc/solo5/solo5.toml").exists(), "configuration stays until purge"
    ok("systemctl", "stop", f"solo5-task-{name}.service")
    purged = ok("dpkg", "--purge", PACKAGE, timeout=300)
    assert "named disks are kept in /var/lib/solo5/disks; remove them with: rm -r /var/lib/solo5\n" in purged
    assert [path.name for path in Path("/etc/solo5").iterdir()] == ["declared.unikernel"]
    assert [path.name for path in Path("/var/lib/solo5").iterdir()] == ["disks"]
    assert not Path("/run/solo5").exists(), "nor the file system of archives"
    assert main_pid(unit) == pids[1], "a purge ends none either"
    ok("dpkg", "--install", deb(), timeout=300)
    assert ok("/usr/bin/solo5ctl", "ps", "--all", "--quiet") == "declared\n"
    ok("/usr/bin/solo5ctl", "disk", "rm", "kept@before", "kept")
    for record in Path("/run/userdb").glob(f"*{Path('/proc', pids[1]).stat().st_uid}.user"):  # until the next boot
        record.unlink()


def test_a_service_that_failed_without_its_package_starts_after_an_installation(machine: Machine, run: Runner) -> None:
    """PID 1 refuses to load the unit file of what it still has a state of, until it reads all files again."""
    machine.expect("solo5-networkd")
    ok("systemctl", "start", "solo5-networkd")
    run("net.spt", "--ipv4={net.service.ipv4_cidr}")  # so that a removal leaves the service running
    ok("dpkg", "--remove", PACKAGE, timeout=300)
    ok("systemctl", "kill", "--signal=KILL", "solo5-networkd")
    eventually(lambda: unit_property("solo5-networkd.service", "ActiveState") == "failed", "it has failed")
    assert unit_property("solo5-networkd.service", "LoadState") == "not-found"
    ok("dpkg", "--install", deb(), timeout=300)
    says(run("net.spt", "--ipv4={net.service.ipv4_cidr}"), "serving")


def test_the_network_service_outlives_a_removal_while_a_declared_task_runs(machine: Machine) -> None:
    with declarations() as declare:
        declare("alone", "Argument=--ipv4={net.service.ipv4_cidr}")
        ok("systemctl", "start", "alone.service")
        before = unit_property("solo5-networkd.service", "MainPID")
        ok("dpkg", "--remove", PACKAGE, timeout=300)
        after = unit_property("solo5-networkd.service", "MainPID")
        ok("dpkg", "--install", deb(), timeout=300)
        assert (before != "0", after) == (True, before)


def test_what_autopkgtest_runs_passes_and_a_purge_leaves_nothing(machine: Machine) -> None:
    try:
        ok("env", "GUESTS=/srv/guests", str(Path(__file__).with_name("installed-package")), timeout=300)
    finally:
        ok("dpkg", "--install", *map(str, DEB.glob("*.deb")), timeout=300)
