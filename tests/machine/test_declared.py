"""Declared tasks: files of the operator, as units that systemd starts, restarts and shows like any other."""

import hashlib
import json
import re
import time
from pathlib import Path

import pytest
from tests.machine.conftest import (
    GUESTS,
    NOBODY,
    Files,
    Machine,
    Outside,
    Runner,
    answers,
    eventually,
    inspect,
    kill_main,
    ok,
    says,
    sh,
    systemctl,
    unit_property,
)
from tests.machine.declared import DIRECTORY, ETC, Declarations, identity, journal, main_pid, status
from tests.machine.traffic import requests

PORT = 8700
WEB = f"Memory=64M\nPublish={PORT}:80\nArgument={{mirage}}"
INSTALL = "[Install]\nWantedBy=multi-user.target\n"
UNLIMITED = "[Unit]\nStartLimitIntervalSec=0\n"
GENERATOR = "/usr/lib/systemd/system-generators/solo5-generator"


def is_up() -> bool:
    return answers(PORT)


def started(unit: str) -> str:
    ok("systemctl", "start", unit)
    return main_pid(unit)


# --- a file is a unit ------------------------------------------------------------------------------------------------


def test_a_file_is_a_unit_that_is_enabled_started_and_shown(declare: Declarations) -> None:
    unit = declare("web", WEB, rest=f"[Unit]\nDescription=The web site\n{INSTALL}")
    ok("systemctl", "enable", "--now", "web")
    eventually(is_up, "it answers at its published port")
    assert systemctl("is-enabled", unit).strip() == "enabled"
    shown = status(unit)
    assert "The web site" in shown
    assert "solo5-spt --net:service=s5-" in shown  # the only process
    assert shown.count("└─") == 1
    assert "serving" in shown
    assert "serving" in journal(unit)
    assert unit in systemctl("list-dependencies", "--plain", "multi-user.target")
    assert inspect("web")["unit"] == unit
    assert "The web site" in systemctl("list-units", "web*")


def test_what_systemctl_edit_mask_and_disable_do(declare: Declarations) -> None:
    unit = declare("web", "", image="sleeper.spt", rest=INSTALL)
    drop_in = Path(f"/etc/systemd/system/{unit}.d/override.conf")
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nRestart=always\nMemoryMax=32M\n")
    systemctl("daemon-reload")
    assert json.loads(ok("solo5ctl", "ps", "--json")) == [], "it was not started yet"
    started(unit)
    assert [each["name"] for each in json.loads(ok("solo5ctl", "ps", "--json"))] == ["web"]
    assert unit_property(unit, "MemoryMax") == str(32 << 20)
    kill_main(unit)
    ok("systemctl", "enable", unit)
    ok("systemctl", "disable", "--now", unit)
    assert sh("systemctl", "is-enabled", unit).stdout.strip() == "disabled"
    ok("systemctl", "mask", unit)
    assert "masked" in sh("systemctl", "start", unit).stderr
    ok("systemctl", "unmask", unit)
    started(unit)


def test_each_argument_reaches_the_tender_as_it_is_written(declare: Declarations) -> None:
    written = r"""Argument=for=60 "a  \"b\" \\ $HOME ${{HOME}} %% `id`;" "" it\'s "é " {mirage} {{x}} '#' """
    unit = declare("web", written, image="sleeper.spt")
    words = Path(f"/proc/{started(unit)}/cmdline").read_text().split("\0")
    expected = ["for=60", 'a  "b" \\ $HOME ${HOME} % `id`;', "", "it's", "é ", "{x}", "#", ""]
    assert words[-len(expected) :] == expected


def test_the_sandbox_is_that_of_every_task(declare: Declarations, run: Runner) -> None:
    unit = declare("web", "Memory=64M\nBlock=storage=disk:sandbox,size=1M,create\nCPUs=0.5", image="netdisk.hvt")
    pid = started(unit)
    other = run(
        "netdisk.hvt", options=("-m", "64M", "--cpus", "0.5", "--block", "storage=disk:sandbox2,size=1M,create")
    )
    theirs = inspect(other)["unit"]
    of_theirs = main_pid(theirs)
    # Names and paths of this task, what is known at its start only, and what PID 1 or a file system counts.
    own = re.compile(
        "^(.*Timestamp.*|.*Monotonic|Id|Names|.*PID|InvocationID|ControlGroup.*|User|UID|GID|ExecStart.*|Fragment.*|"
        "SourcePath|Description|Documentation|After|Requires|Wants|WantsMountsFor|RequiresMountsFor|Slice.*|"
        "Environment.*|Standard.*|StatusErrno|SyslogIdentifier|LogExtraFields|BindPaths|BindReadOnlyPaths|NoExecPaths|"
        "DeviceAllow|Memory(Current|Peak|Available|Swap.*|ZSwap.*)|CPUUsage.*|IO.*|TasksCurrent|.*Accounting|Transient|"
        "RestartPreventExitStatus|RootDirectoryStartOnly|ExecReload.*|CanReload|LimitFSIZE.*|TimeoutStartUSec|"
        "UnitFile.*|CanClean|DropInPaths|IgnoreOnIsolate|Markers|Effective.*|ExecMain.*|IP(In|E)gress.*|"
        "NetworkNamespace.*|ManagedOOM.*|CanFreeze|CanLive.*|MountImages|ExtensionImages|.*Hash|Perpetual|NFileDesc.*|"
        "PrivatePIDs|LogNamespace|Propagates.*|ConsistsOf|Conflicts.*|Before|Triggers.*|WantedBy|RequiredBy)$"
    )
    ours, other_ones = (
        {
            key: value
            for key, _, value in (line.partition("=") for line in systemctl("show", each).splitlines())
            if not own.match(key)
        }
        for each in (unit, theirs)
    )
    assert {key: set(value.split()) for key, value in ours.items()} == {
        key: set(value.split()) for key, value in other_ones.items()
    }
    assert len(ours) > 150
    for name in ("Seccomp", "Seccomp_filters", "NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert _status(pid)[name] == _status(of_theirs)[name], name
    assert _status(pid)["Uid"] != _status(of_theirs)["Uid"]
    assert _mounts(pid) == _mounts(of_theirs)
    for kind in ("ipc", "mnt", "user"):
        assert Path(f"/proc/{pid}/ns/{kind}").readlink() != Path(f"/proc/1/ns/{kind}").readlink()


def _status(pid: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {key: value.strip() for key, _, value in pairs}


def _mounts(pid: str) -> list[tuple[str, ...]]:
    """Where the sandbox has mounts, with their options; images and disks have names of their own."""
    lines = [line.split(" - ")[0].split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    points = [(re.sub("^/var/lib/solo5/images/.+", "IMAGE", line[4]), line[5]) for line in lines]
    return sorted(points)


# --- addresses, leases, restarts -------------------------------------------------------------------------------------


AGAIN = (
    "systemctl restart web@0",
    "systemctl stop web@0; systemctl daemon-reload; systemctl start web@0",
    "systemctl kill --signal=KILL --kill-whom=main web@0",
    "printf '\\0' >>/srv/changed.spt; systemctl restart web@0",
    "systemctl stop solo5-networkd solo5-relay; systemctl restart web@0",
)


def test_a_started_again_task_has_the_same_addresses(declare: Declarations, place: Files) -> None:
    """An instance of a template, whose other instance is left alone."""
    changed = place("/srv/changed.spt", (GUESTS / "net.spt").read_bytes())
    lines = "Memory=64M\nPublish=870%i:80\nArgument={mirage}"
    declare.write("web@", f"[Unikernel]\nImage={changed}\n{lines}\n{UNLIMITED}[Service]\nRestart=on-failure\n")
    systemctl("daemon-reload")
    ok("systemctl", "start", "web@0", "web@1")
    had, other = identity("web@0"), main_pid("web@1")
    for again in (*AGAIN, AGAIN[0]):
        before = main_pid("web@0")
        ok("sh", "-ec", again)
        eventually(lambda before=before: main_pid("web@0") not in ("0", before), "another process")  # type: ignore[misc]
        eventually(is_up, f"it answers again, {again}")
        assert (identity("web@0"), main_pid("web@1")) == (had, other), again
        if again == AGAIN[-1]:
            systemctl("daemon-reexec")
    assert answers(PORT + 1)


def test_a_client_sees_a_pause_of_a_restart_and_no_refusal(declare: Declarations, outside: Outside) -> None:
    unit = declare("web", WEB)
    started(unit)
    eventually(is_up, "it answers")
    with requests(outside, outside.here, PORT, 50) as client:
        for _ in range(2):
            ok("systemctl", "restart", unit)
            eventually(is_up, "it answers again")
        during = client.tally()
    assert (during.refused, during.answered > 50) == (0, True), during


def test_a_wrong_argument_is_not_tried_again(declare: Declarations) -> None:
    again = "[Service]\nRestart={}\nRestartSec=100ms\n"
    unit = declare("web", "Argument=exit=64", image="hello.spt", rest=again.format("always"))
    other = declare("other", "Argument=exit=64", image="hello.spt")
    crash = declare("crash", "Argument=exit=2", image="hello.spt", rest=again.format("on-failure"))
    sh("systemctl", "start", unit, other, crash)  # a guest that ends at once may fail its start, too
    eventually(lambda: unit_property(unit, "ActiveState") == "failed", "it has failed")
    reason = "the guest exited with 64 (invalid arguments); a retry cannot help: its arguments have to change."
    eventually(lambda: f"{reason} Restart=always does not start it again." in status(unit), "the unit shows the reason")
    assert unit_property(unit, "NRestarts") == "0"
    eventually(lambda: not (DIRECTORY / "other/uncleared").exists(), "it is cleared up")
    assert "start it again" not in journal(other), "without Restart="
    eventually(lambda: int(unit_property(crash, "NRestarts")) >= 2, "another status is tried again")


def test_a_restart_that_cannot_help_is_withheld_and_a_manual_start_is_not(declare: Declarations) -> None:
    rest = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=on-failure\nRestartSec=100ms\n"
    unit = declare("small", "Argument=how=memory", image="aborter.spt", rest=rest)
    said = "Restart=on-failure does not start it again"
    for starts in (1, 2):
        sh("systemctl", "start", unit)  # which can fail: a guest that ends at once may end before its start job
        eventually(lambda n=starts: journal(unit).count(said) == n, "the unit shows it")  # type: ignore[misc]
        eventually(lambda: not (DIRECTORY / "small/uncleared").exists(), "it is cleared up")
        eventually(lambda: unit_property(unit, "ActiveState") == "inactive", "no start is queued")
        # One restart was queued after each start; PID 1 of systemd 252 counts on over a start by hand.
        assert unit_property(unit, "Result") == "exit-code"
        assert int(unit_property(unit, "NRestarts")) == (starts if " 252 " in systemctl("--version") else 1)
        assert (said in status(unit), journal(unit).count(said)) == (True, starts)
    assert "its image alone fills its memory, which has to be raised. Restart=on-failure" in journal(unit)
    alarmed = rest.replace("Sec=0", "Sec=1h\nOnFailure=solo5-alarm.service")
    other = declare("alarmed", "Argument=how=memory", image="aborter.spt", rest=alarmed)
    sh("systemctl", "start", other)
    eventually(lambda: unit_property(other, "ActiveState") == "failed", "systemd gives up")
    assert "Triggering OnFailure= dependencies" in journal(other)
    eventually(lambda: said in journal(other), "the unit shows the outcome")


# --- what cannot start -----------------------------------------------------------------------------------------------


def test_an_image_that_is_missing_is_named_where_an_operator_looks(declare: Declarations, place: Files) -> None:
    image = Path("/srv/late.spt")
    declare.write("web", f"[Unikernel]\nImage={image}\nTender=spt\n{WEB}\n")
    systemctl("daemon-reload")
    assert sh("systemctl", "start", "web").returncode == 1
    assert f"image '{image}' does not exist" in status("web")
    place(image, (GUESTS / "net.spt").read_bytes())
    started("web.service")
    eventually(is_up, "it starts without a daemon-reload")
    image.unlink()
    declare.write("web", f"[Unikernel]\nImage={image}\nTender=spt\n")
    systemctl("daemon-reload")
    place(image, (GUESTS / "sleeper.spt").read_bytes())
    ok("systemctl", "restart", "web")
    assert inspect("web")["nics"] == [], "nor does one without NICs need it"


def test_a_directory_that_cannot_be_written_is_named_where_an_operator_looks(declare: Declarations) -> None:
    unit = declare("web", "", image="sleeper.spt")
    own = DIRECTORY / "web"
    ok("mount", "--bind", str(own), str(own))
    try:
        ok("mount", "-o", "remount,bind,ro", str(own))
        assert sh("systemctl", "start", unit).returncode == 1
        assert re.search(f"{own}/[a-z]+ cannot be written: Read-only file system: expected room", status(unit))
    finally:
        ok("umount", str(own))
    started(unit)
    ok("systemctl", "stop", unit)
    eventually(lambda: not (own / "uncleared").exists(), "it is cleared up")
    # A file system without room for what the start writes.
    sources = (own / "sources").read_bytes()
    ok("mount", "-t", "tmpfs", "-o", "mode=0755,nr_inodes=6", "tmpfs", str(own))
    try:
        (own / "sources").write_bytes(sources)
        assert sh("systemctl", "start", unit).returncode == 1
        assert "cannot be written: No space left on device: expected room" in status(unit)
        eventually(lambda: not (own / "uncleared").exists(), "it is cleared up")
    finally:
        ok("umount", str(own))
    started(unit)


def test_a_tender_that_is_missing_is_named_where_an_operator_looks(declare: Declarations, place: Files) -> None:
    directory = Path("/srv/tenders")
    place(ETC / "tenders.toml", f'tender_paths = ["{directory}"]\n')
    unit = declare("web", "", image="sleeper.spt")
    assert sh("systemctl", "start", unit).returncode == 1
    assert f"solo5-spt is not in {directory}: expected the tender there." in status(unit)
    place(directory / "solo5-spt", Path("/usr/local/bin/solo5-spt").read_bytes(), 0o755)
    assert f"{directory}/solo5-spt" in Path(f"/proc/{started(unit)}/cmdline").read_text()


def test_a_refused_file_is_a_unit_that_shows_why(declare: Declarations) -> None:
    unit = declare("bad", r"Memory=\bit\c\101")
    sentence, value = f"{ETC}/bad.unikernel:3: Memory=", r"'\\bit\\c\\101'"
    assert sh("systemctl", "start", unit).returncode == 1
    assert sentence in status(unit)
    assert sentence in sh("systemd-analyze", "verify", unit).stderr
    doctor = ok("solo5ctl", "doctor")
    assert sentence in doctor
    assert value in doctor
    assert value in ok("journalctl", "--quiet", "--output=cat", "--identifier=sh", f"--unit={unit}")
    assert value in ok("systemctl", "show", "--property=Description", unit)
    declare("bad", "Memory=64M", image="hello.spt")
    started(unit)
    assert re.search("^declarations +ok +1$", ok("solo5ctl", "doctor"), re.MULTILINE)


def test_settings_that_cannot_be_read_are_shown_by_each_unit_and_stop_nothing(
    declare: Declarations, place: Files
) -> None:
    running = declare("runs", "", image="sleeper.spt", rest=INSTALL)
    stopped = declare("web", "", image="sleeper.spt", rest=INSTALL)
    pid = started(running)
    broken = place(ETC / "broken.toml", "[network.lan\n")
    sentence = f"{ETC}/web.unikernel: {broken} cannot be read as TOML"
    systemctl("daemon-reload")
    assert sh("systemctl", "start", stopped).returncode == 1
    assert sentence in status(stopped)
    assert main_pid(running) == pid
    assert f"{ETC}/runs.unikernel: {broken} cannot be read as TOML" in status(running)
    ok("systemctl", "stop", running)
    for name in ("runs", "web"):  # as at a boot
        Path(f"/run/systemd/system/{name}.service").unlink()
        systemctl("daemon-reload")
        assert sh("systemctl", "start", name).returncode == 1
        assert f"{ETC}/{name}.unikernel: {broken} cannot be read as TOML" in status(f"{name}.service")
    broken.unlink()
    systemctl("daemon-reload")
    started(running)
    started(stopped)


def test_what_a_restart_would_end_is_named_before_and_a_reload_keeps_it(declare: Declarations, place: Files) -> None:
    image = place("/srv/gone.spt", (GUESTS / "netdisk.spt").read_bytes())
    disk = place("/srv/gone.img", bytes(4096))
    ok("chown", "solo5:", str(disk))
    declare.write("web", f"[Unikernel]\nImage={image}\nBlock=storage={disk}\nPublish=8094:80\nArgument={{mirage}}\n")
    systemctl("daemon-reload")
    ok("systemctl", "start", "web")
    pid = main_pid("web")
    assert "could not start now" not in ok("solo5ctl", "doctor"), "what it has itself is in no way"
    image.unlink()
    doctor = " ".join(ok("solo5ctl", "doctor").split())
    assert f"web could not start now image '{image}' does not exist." in doctor
    assert sh("systemctl", "reload", "web").returncode == 1
    assert main_pid("web") == pid
    ok("systemctl", "stop", "web")


def test_an_image_for_another_tender_needs_a_daemon_reload(declare: Declarations, place: Files) -> None:
    image = place("/srv/other.bin", (GUESTS / "hello.spt").read_bytes())
    declare.write("web", f"[Unikernel]\nImage={image}\n")
    systemctl("daemon-reload")
    ok("systemctl", "start", "web")
    image.write_bytes((GUESTS / "net.spt").read_bytes())
    assert sh("systemctl", "restart", "web").returncode == 1
    assert "systemctl daemon-reload" in status("web")
    systemctl("daemon-reload")
    ok("systemctl", "start", "web")


_OTHER_GENERATOR = """#!/bin/sh
for file in /etc/containers/systemd/*.container; do
    name=${file##*/}
    printf '[Service]\\nExecStart=/bin/true\\n' >"$1/${name%.container}.service"
done
printf '[Service]\\nExecStart=/bin/true\\n' >"$3/other.service"
"""


def test_the_name_of_another_unit_is_refused_also_of_one_that_another_generator_makes(
    declare: Declarations, place: Files
) -> None:
    declare("debug-shell", "", image="sleeper.spt")
    packaged = unit_property("debug-shell.service", "FragmentPath")
    assert packaged.endswith("/lib/systemd/system/debug-shell.service")
    packaged = packaged.removeprefix("/usr")  # a link, where both are one
    assert re.search(f"unit debug-shell.service is (/usr)?{packaged} already", ok("solo5ctl", "doctor"))
    made = Path("/run/systemd/generator/web.service")
    ours = declare("web", "", image="sleeper.spt")
    assert unit_property(ours, "FragmentPath") == "/run/systemd/system/web.service"
    files = (
        place("/etc/containers/systemd/web.container", "[Container]\nImage=web\n"),
        place("/etc/systemd/system-generators/other", _OTHER_GENERATOR, 0o755),
    )
    systemctl("daemon-reload")
    assert unit_property(ours, "FragmentPath") == str(made)
    assert f"{ETC}/web.unikernel: unit web.service is" in sh(GENERATOR, "/tmp", "/tmp", "/tmp").stderr
    assert f"unit web.service is {made} already" in ok("solo5ctl", "doctor")
    # One whose source is not known is hidden, and named afterwards.
    declare("other", "", image="sleeper.spt")
    assert "unit other.service is /run/systemd/generator.late/other.service already" in ok("solo5ctl", "doctor")
    for file in files:
        file.unlink()
    systemctl("daemon-reload")
    assert unit_property(ours, "FragmentPath") == "/run/systemd/system/web.service"


def test_a_name_has_one_task(declare: Declarations, run: Runner) -> None:
    unit = declare("web", "", image="sleeper.spt")
    refused = run.fail("--name", "web", str(GUESTS / "hello.spt"))
    assert "is that of a declared task" in refused.stderr
    started(unit)
    other = run("sleeper.spt", name="job")
    declare("job", "", image="sleeper.spt")
    assert sh("systemctl", "start", "job").returncode == 1
    assert "task name 'job' is taken" in status("job")
    assert inspect(other)["unit"] == "solo5-task-job.service"


def test_only_root_reads_what_a_start_has_made(declare: Declarations) -> None:
    unit = declare("web", f"{WEB}\nArgument=--token=geheim")
    started(unit)
    assert sh(*NOBODY, "cat", str(DIRECTORY / "web/environment")).returncode != 0
    assert sh(*NOBODY, "touch", str(DIRECTORY / "web/x")).returncode != 0
    assert sh(*NOBODY, "mkdir", str(DIRECTORY / "other")).returncode != 0
    assert sh(*NOBODY, "python3", "-I", "-m", "solo5_systemd.pid1", "prepare", "web").returncode != 0
    assert is_up()


def test_a_taken_over_tender_does_not_fill_run(declare: Declarations) -> None:
    unit = declare("web", WEB)
    pid = started(unit)
    path = Path(f"/proc/{pid}/fd/2").resolve()
    assert path == DIRECTORY / "web/tender/stderr"
    with path.open("ab", buffering=0) as stderr:
        written = stderr.write(bytes(1 << 20))
        with pytest.raises(OSError, match="No space left"):
            stderr.write(b"x")
    assert written <= 64 << 10
    assert path.stat().st_size <= 64 << 10
    assert is_up()


# --- disks -----------------------------------------------------------------------------------------------------------


def test_a_disk_has_one_writer_whoever_starts_it(declare: Declarations, run: Runner) -> None:
    ok("solo5ctl", "disk", "create", "data", "1M")
    unit = declare("web", "Argument=write=kept\nArgument=stay\nBlock=storage=disk:data", image="disk.spt")
    started(unit)
    refused = run.fail("--block", "storage=disk:data", str(GUESTS / "disk.spt"))
    assert "is in use by another task" in refused.stderr
    [disk] = json.loads(ok("solo5ctl", "disk", "ls", "--json"))
    assert disk["task"] == "web"
    systemctl("daemon-reexec")
    refused = run.fail("--block", "storage=disk:data", str(GUESTS / "disk.spt"))
    assert refused.returncode == 125
    ok("systemctl", "stop", unit)
    eventually(
        lambda: sh("solo5ctl", "run", "--rm", "--name", "reader", "--block", "storage=disk:data",
                   str(GUESTS / "disk.spt"), "read").stdout.count("'kept'") == 1,
        "the disk is free, with what was written",
    )  # fmt: skip


def test_files_and_private_copies_come_anew_with_each_start(declare: Declarations, place: Files) -> None:
    secret = place("/etc/solo5/secret.txt", "first")
    golden = place("/srv/golden.img", b"golden".ljust(1 << 20, b"\0"))
    unit = declare(
        "web",
        f"Argument=read\nArgument=write=changed\nArgument=stay\nBlock=storage={golden},ephemeral",
        image="disk.spt",
    )
    started(unit)
    says("web", "sector 0: 'golden'")
    ok("systemctl", "restart", unit)
    eventually(lambda: journal(unit).count("sector 0: 'golden'") == 2, "the copy is made anew")
    ok("systemctl", "stop", unit)
    assert golden.read_bytes().startswith(b"golden\0")
    other = declare("conf", f"Block=storage=files:{secret}", image="tar.spt")
    ok("systemctl", "start", other)
    eventually(lambda: digest("first") in journal(other), "the guest reads the file")
    secret.write_text("second")
    ok("systemctl", "restart", other)
    eventually(lambda: digest("second") in journal(other), "the guest reads the changed file")
    assert "first" not in systemctl("show", other)


def digest(text: str) -> str:
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


# --- solo5ctl --------------------------------------------------------------------------------------------------------


def test_a_stopped_task_has_not_failed(declare: Declarations) -> None:
    again = "[Service]\nRestart=always\nRestartSec=100ms"
    units = [declare(image, "", image=f"sleeper.{image}", rest=again) for image in ("hvt", "spt")]
    since = f"--since=@{time.time():.6f}"
    for verb in ("start", "restart", "stop"):
        ok("systemctl", verb, *units)
    for unit in units:
        assert (unit_property(unit, "ActiveState"), unit_property(unit, "Result")) == ("inactive", "success")
        assert "Failed with result" not in ok("journalctl", "--quiet", since, "--unit", unit, "--output=cat")
        assert inspect(unit.removesuffix(".service"))["outcome"]["ending"] == "stopped"
    for option in ("--time=60", "--signal=INT"):
        ok("systemctl", "start", *units)
        ok("solo5ctl", "stop", option, "hvt", "spt")
        for unit in units:
            assert unit_property(unit, "ActiveState") == "inactive", "it does not wait for RestartSec="
            assert inspect(unit.removesuffix(".service"))["outcome"]["ending"] == "stopped"


def test_a_task_that_is_stopped_amid_its_start_has_not_failed(declare: Declarations) -> None:
    unit, prepare = declare("web", WEB), "solo5-prepare@web.service"
    ok("systemctl", "start", "--no-block", unit)
    eventually(lambda: main_pid(prepare) != "0", "its preparation has begun")
    ok("kill", "-STOP", main_pid(prepare))
    ok("systemctl", "stop", unit)
    for each in (unit, prepare):
        eventually(lambda of=each: unit_property(of, "ActiveState") == "inactive", f"{each} is over")  # type: ignore[misc]
    assert not Path("/run/solo5/network/tasks/web.json").exists()


# --- the end of a file, and of our processes -------------------------------------------------------------------------


def test_a_removed_file_stops_nothing_and_leaves_nothing(declare: Declarations) -> None:
    unit = declare("web", WEB)
    pid = started(unit)
    (ETC / "web.unikernel").unlink()
    systemctl("daemon-reload")
    assert main_pid(unit) == pid
    assert is_up()
    ok("systemctl", "stop", unit)
    eventually(lambda: not list(Path("/run/solo5/network/tasks").glob("web.json")), "its lease is released")
    eventually(lambda: not (DIRECTORY / "web").exists(), "its files are removed")
    assert list(Path("/run/systemd/system").glob("*web*")) == []
    eventually(lambda: unit_property(unit, "LoadState") == "not-found", "PID 1 has unloaded it")


@pytest.mark.parametrize("edit", ["removed", "refused"])
def test_a_file_that_is_removed_or_refused_while_its_task_runs_leaves_the_disk_locked(
    declare: Declarations, run: Runner, edit: str
) -> None:
    unit = declare("web", "Argument=stay\nBlock=storage=disk:data,create,size=1M", image="disk.spt")
    pid = started(unit)
    path = ETC / "web.unikernel"
    if edit == "removed":
        path.unlink()
    else:
        path.write_text(path.read_text() + "Memry=64M\n")
    systemctl("daemon-reload")
    assert main_pid(unit) == pid
    assert unit_property("solo5-prepare@web.service", "ActiveState") == "active"
    assert "is in use by another task" in run.fail("--block", "storage=disk:data", str(GUESTS / "disk.spt")).stderr
    assert inspect("web")["phase"] == "running"
    assert sh("systemctl", "restart", unit).returncode == 1
    assert ("was removed: expected it for a start" if edit == "removed" else f"{path}:6: Memry=") in status(unit), (
        status(unit)
    )
    assert main_pid(unit) == "0"


def test_a_task_whose_file_is_gone_is_not_started_again_by_restart(declare: Declarations) -> None:
    unit = declare("web", WEB, rest="[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=always\nRestartSec=100ms")
    pid = started(unit)
    (ETC / "web.unikernel").unlink()
    systemctl("daemon-reload")
    ok("kill", "-KILL", pid)
    eventually(lambda: not (DIRECTORY / "web").exists(), "its files are removed")
    eventually(lambda: unit_property(unit, "ActiveState") == "failed", "it has failed")
    assert unit_property(unit, "NRestarts") == "0"


def test_without_a_file_the_generator_executes_nothing(machine: Machine) -> None:
    masked = "mount --bind /bin/false /usr/bin/python3; exec " + GENERATOR
    assert sh("unshare", "--mount", "sh", "-ec", masked).returncode == 0


def test_a_killed_preparation_leaves_nothing_and_the_next_succeeds(declare: Declarations) -> None:
    ok("solo5ctl", "disk", "create", "data", "1M")
    unit = declare("web", f"{WEB}\nBlock=storage=disk:data", image="netdisk.spt", rest=UNLIMITED)
    prepare = "solo5-prepare@web.service"
    for delay in (0.0, 0.05, 0.1, 0.2, 0.3):
        ok("systemctl", "start", "--no-block", unit)
        eventually(lambda: main_pid(prepare) != "0" or unit_property(unit, "ActiveState") == "active", "it begins")
        end = time.monotonic() + delay
        eventually(lambda end=end: time.monotonic() >= end, "so much later")  # type: ignore[misc]
        sh("systemctl", "kill", "--kill-whom=main", "--signal=KILL", prepare)
        eventually(lambda: unit_property(unit, "Job") in ("", "0"), "the start is over")
        ok("systemctl", "start", unit)
        eventually(is_up, f"it answers, {delay} s")
        ok("systemctl", "stop", unit)


def test_what_clears_up_after_a_task_may_be_killed_once(declare: Declarations) -> None:
    unit = declare("web", WEB)
    pid = started(unit)
    (ETC / "web.unikernel").unlink()
    systemctl("daemon-reload")
    ok("kill", "-KILL", pid)
    prepare = "solo5-prepare@web.service"
    eventually(lambda: unit_property(prepare, "ControlPID") != "0", "it clears up")
    ok("kill", "-KILL", unit_property(prepare, "ControlPID"))
    eventually(lambda: not (DIRECTORY / "web").exists(), "its files are removed by another one")
    eventually(lambda: unit_property(prepare, "ActiveState") == "inactive", "the preparation has not failed")


def test_nothing_is_started_again_where_no_program_of_ours_can_prepare_it(
    declare: Declarations, machine: Machine
) -> None:
    """Its disk would have no lock."""
    machine.expect(r"solo5-prepare@web\.service")
    disk = "Argument=stay\nBlock=storage=disk:data,create,size=1M"
    unit = declare("web", disk, image="disk.spt", rest="[Service]\nRestart=always")
    pid, program = started(unit), Path("/usr/lib/python3/dist-packages/solo5_systemd/pid1/__main__.py")
    away = program.rename(program.with_name("away.py"))
    try:
        ok("kill", "-KILL", pid)
        eventually(lambda: unit_property("solo5-prepare@web.service", "ActiveState") == "failed", "it is not prepared")
        eventually(lambda: unit_property(unit, "ActiveState") in ("failed", "inactive"), "it does not run")
    finally:
        away.rename(program)
    ok("systemctl", "reset-failed", unit)
    started(unit)


def test_settings_that_cannot_be_read_do_not_keep_a_task_from_being_cleared_up(
    declare: Declarations, place: Files
) -> None:
    ok("solo5ctl", "disk", "create", "golden", "1M")
    unit = declare("web", f"{WEB}\nBlock=storage=disk:golden,ephemeral", image="netdisk.hvt")
    copies = Path("/var/lib/solo5/copies")
    before = set(copies.iterdir()) if copies.exists() else set()
    started(unit)
    assert set(copies.iterdir()) > before
    broken = place(ETC / "broken.toml", "[network.lan\n")
    ok("systemctl", "kill", "--signal=TERM", "--kill-whom=main", unit)
    eventually(lambda: "Exiting on signal 15" in journal(unit), "the journal has what the tender wrote to stderr")
    eventually(lambda: not (DIRECTORY / "web/uncleared").exists(), "it is cleared up")
    assert set(copies.iterdir()) == before
    eventually(lambda: unit_property(unit, "ActiveState") == "failed", "hvt has exited with 1")
    broken.unlink()
    assert inspect("web")["outcome"]["ending"] == "stopped"


def test_a_file_that_is_removed_while_its_task_is_cleared_up_leaves_nothing(declare: Declarations) -> None:
    prepare = "solo5-prepare@web.service"
    for wait in (0, 0.1, 10):
        unit = declare("web", WEB)
        started(unit)
        ok("systemctl", "stop", unit)
        # As long as it clears up, and in the moment after: at the file that is there until it has.
        end = time.monotonic() + wait
        eventually(
            lambda end=end: time.monotonic() >= end or not (DIRECTORY / "web/uncleared").exists(),  # type: ignore[misc]
            "it clears up, or has",
        )
        (ETC / "web.unikernel").unlink()
        systemctl("daemon-reload")
        eventually(lambda: not (DIRECTORY / "web").exists(), "its files are removed")
        eventually(lambda: unit_property(prepare, "ActiveState") == "inactive", "its preparation has ended")
        sh("solo5ctl", "gc")


def test_a_task_that_was_not_started_has_no_outcome_and_one_whose_preparation_failed_names_it(
    declare: Declarations,
) -> None:
    unit = declare("web", "", image="hello.spt")
    assert "outcome" not in inspect("web")
    image = Path(f"{GUESTS}/gone.spt")
    image.write_bytes(Path(f"{GUESTS}/hello.spt").read_bytes())
    declare("gone", "", image="gone.spt")
    image.unlink()
    assert sh("systemctl", "start", "gone.service").returncode != 0
    reason = inspect("gone")["outcome"]["sentence"]
    assert reason == "not started: its preparation has failed: systemctl status solo5-prepare@gone.service"
    ok("systemctl", "start", unit)
    eventually(lambda: inspect("web").get("outcome", {}).get("ending") == "exited", "it has one")
