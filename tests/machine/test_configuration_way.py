"""Configuration is root's on the whole way to it: who owns a directory that it passes through gets nothing."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, eventually, ok, sh, systemctl
from tests.machine.declared import DIRECTORY, ETC, Declarations, main_pid

MALLORY = 4242
SECRET = "correct-horse-battery"
UNITS = Path("/run/systemd/system")
INTO_TARGET = "[Unikernel]\nBlock=storage:/srv/way/target\n"


@pytest.fixture
def way(machine: Machine) -> Iterator[Path]:
    """A directory of root's that is no configuration."""
    directory = Path("/srv/way")
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def home(way: Path) -> Path:
    """A directory of another user's."""
    directory = way / "home"
    directory.mkdir()
    os.chown(directory, MALLORY, MALLORY)
    return directory


def refused(unit: str, entry: Path) -> None:
    """Check that a unit starts nothing, and says with `solo5ctl doctor` who may change what."""
    sentence = f"{entry} may be changed by user {MALLORY}: expected it to be"
    systemctl("daemon-reload")
    assert sh("systemctl", "restart", unit).returncode == 1
    assert sentence in sh("systemctl", "status", "--no-pager", "--full", unit).stdout
    assert sentence in sh("solo5ctl", "doctor").stdout


def linked(declare: Declarations, place: Path) -> None:
    """Have the declaration `web` be a link to a place."""
    declare.names.append("web")
    (ETC / "web.unikernel").unlink(missing_ok=True)
    (ETC / "web.unikernel").symlink_to(place)


def target(way: Path) -> Path:
    """A file of root's that a guest with it as its disk would read, overwrite, and finally own."""
    file = way / "target"
    file.write_bytes(SECRET.encode().ljust(512))
    file.chmod(0o600)
    return file


def test_a_drop_in_directory_of_another_user_gives_no_disk(declare: Declarations, way: Path) -> None:
    """The owner of `web.unikernel.d/` links to a file of root's, whose content is the owner's."""
    before = target(way).stat()
    unit = declare("web", "", image="disk.spt")
    drop_ins = ETC / "web.unikernel.d"
    drop_ins.mkdir()
    words = way / "words"  # as of a tender's stderr, or of a template of Nomad's
    words.write_text(INTO_TARGET)
    (drop_ins / "50.conf").symlink_to(words)
    os.chown(drop_ins, MALLORY, MALLORY)
    refused(unit, drop_ins)
    after = (way / "target").stat()
    assert (after.st_uid, after.st_mode, after.st_mtime_ns) == (before.st_uid, before.st_mode, before.st_mtime_ns)
    assert SECRET.encode() in (way / "target").read_bytes()


def test_a_link_into_another_users_directory_is_no_declaration(declare: Declarations, way: Path, home: Path) -> None:
    """Whichever file of root's the link in it leads to."""
    words = way / "words"
    words.write_text(f"[Unikernel]\nImage={GUESTS}/sleeper.spt\n")
    (home / "link").symlink_to(words)
    linked(declare, home / "link")
    refused("web.service", home)
    linked(declare, words)
    systemctl("daemon-reload")
    ok("systemctl", "start", "web")


def test_a_hard_link_and_a_bind_mount_in_another_users_directory_are_no_declaration(
    declare: Declarations, way: Path, home: Path
) -> None:
    words = way / "words"
    words.write_text(f"[Unikernel]\nImage={GUESTS}/sleeper.spt\n")
    (home / "hard").hardlink_to(words)
    (home / "bound").mkdir()
    ok("mount", "--bind", str(way), str(home / "bound"))
    try:
        for place in (home / "hard", home / "bound/words"):
            linked(declare, place)
            refused("web.service", home)
    finally:
        ok("umount", str(home / "bound"))


def test_settings_in_a_directory_that_others_may_write_stop_each_start(declare: Declarations, way: Path) -> None:
    """/etc/solo5 is a link of root's to elsewhere of root's, which is followed until others may write there."""
    real = way / "solo5"
    shutil.move(ETC, real)
    ETC.symlink_to(real)
    try:
        unit = declare("web", "", image="sleeper.spt")
        ok("systemctl", "start", unit)
        pid = main_pid(unit)
        real.chmod(0o1777)
        systemctl("daemon-reload")
        assert main_pid(unit) == pid, "what runs is not stopped"
        assert sh("systemctl", "restart", unit).returncode == 1
        status = sh("systemctl", "status", "--no-pager", "--full", unit).stdout
        started = sh("solo5ctl", "run", "--detach", "--name", "other", f"{GUESTS}/sleeper.spt")
        assert started.returncode == 125
        doctor = sh("solo5ctl", "doctor")
        assert doctor.returncode == 1
        for text in (status, started.stderr, doctor.stdout):
            assert f"{real} may be changed by " in text
        written = sh("solo5ctl", "run", "--declare", "new", f"{GUESTS}/sleeper.spt")
        assert f"{real} may be changed by " in written.stderr
        assert not (real / "new.unikernel").exists()
    finally:
        real.chmod(0o755)
        ETC.unlink()
        shutil.move(real, ETC)


def test_a_link_to_dev_null_of_another_user_masks_nothing(declare: Declarations) -> None:
    unit = declare("web", "", image="sleeper.spt")
    drop_in = ETC / "web.unikernel.d/50.conf"
    drop_in.parent.mkdir()
    drop_in.symlink_to("/dev/null")
    systemctl("daemon-reload")
    ok("systemctl", "restart", unit)
    os.chown(drop_in, MALLORY, MALLORY, follow_symlinks=False)
    systemctl("daemon-reload")
    assert sh("systemctl", "restart", unit).returncode == 1
    status = sh("systemctl", "status", "--no-pager", "--full", unit).stdout
    assert f"{drop_in} may be changed by user {MALLORY}" in status


def test_a_tender_in_another_users_directory_is_not_executed(machine: Machine, way: Path, home: Path) -> None:
    """Not for its version either, as which root executes it."""
    mark = way / "mark"
    tender = home / "solo5-spt"
    tender.write_text(f"#!/bin/sh\ntouch {mark}\nprintf 'version v1\\nABI version 2\\n' >&2\n")
    tender.chmod(0o755)
    settings = ETC / "zz-way.toml"
    settings.write_text(f'tender_paths = ["{home}"]\n')
    try:
        done = sh("solo5ctl", "run", "--detach", "--name", "web", f"{GUESTS}/sleeper.spt")
        doctor = sh("solo5ctl", "doctor")
    finally:
        settings.unlink()
    assert (done.returncode, doctor.returncode) == (125, 1)
    assert f"{tender} is refused: {home} may be changed by user {MALLORY}" in done.stderr
    assert f"{tender} is refused: {home} may be changed by user {MALLORY}" in doctor.stdout
    assert not mark.exists()


def test_no_text_of_a_file_that_not_everybody_may_read_is_shown(declare: Declarations, way: Path) -> None:
    """Not in a unit file or the journal, whichever of root's files a declaration is."""
    file = way / "secret"
    for text in (
        f"{SECRET}\n",
        f"[Unikernel]\n{SECRET}\n",
        f"{SECRET}=\n",
        f"[Unikernel]\nImage={SECRET}\n",
        f"[Unikernel]\nImage=/a\nMemory={SECRET}\n",
        f"[Unikernel]\nImage=/a\n[Service]\nRestart={SECRET}\n",
    ):
        file.write_text(text)
        file.chmod(0o600)
        linked(declare, file)
        systemctl("daemon-reload")
        assert sh("systemctl", "start", "web").returncode == 1
        number = len(text.splitlines())
        unit = (UNITS / "web.service").read_text()
        assert f"{ETC}/web.unikernel:{number}: " in unit
        assert SECRET not in unit
        assert SECRET not in ok("journalctl", "--quiet", "--boot", "--output=export")
    settings = ETC / "zz-way.toml"
    settings.write_text(f'log_namespace = "{SECRET} {SECRET}"\n')
    settings.chmod(0o600)
    try:
        systemctl("daemon-reload")
        unit = (UNITS / "web.service").read_text()
    finally:
        settings.unlink()
    assert f"{settings}: log_namespace is not valid: expected " in unit
    assert SECRET not in unit


def test_no_argument_of_a_file_that_not_everybody_may_read_is_in_the_error_of_a_start(declare: Declarations) -> None:
    """Placeholders are known when the task starts."""
    file = ETC / "web.unikernel"
    web = declare("web", f"Argument=--key={SECRET}{{", image="hello.spt")
    file.chmod(0o600)
    systemctl("daemon-reload")
    assert sh("systemctl", "start", web).returncode == 1
    journal = ok("journalctl", "--quiet", "--boot", "--output=export")
    assert f"{file} is not valid: expected one of {{" in journal
    assert SECRET not in journal
    assert SECRET not in (UNITS / "web.service").read_text()


def test_what_a_tender_writes_is_no_configuration(declare: Declarations, way: Path) -> None:
    """Also where a link of root's leads to the file in which root keeps it."""
    target(way)
    hostile = declare("hostile", "", image="sleeper.spt")
    ok("systemctl", "start", hostile)
    kept = DIRECTORY / "hostile"
    with (kept / "tender/stderr").open("a") as stderr:
        stderr.write(INTO_TARGET)
    web = declare("web", "", image="disk.spt")
    drop_in = ETC / "web.unikernel.d/50.conf"
    drop_in.parent.mkdir()
    for file in (kept / "tender/stderr", kept / "stderr"):
        drop_in.unlink(missing_ok=True)
        drop_in.symlink_to(file)
        eventually(file.exists, "it is kept")
        assert INTO_TARGET in file.read_text()
        systemctl("daemon-reload")
        assert sh("systemctl", "start", web).returncode == 1
        status = sh("systemctl", "status", "--no-pager", "--full", web).stdout
        assert (
            f"{drop_in} is refused: {file if file.parent == kept else file.parent} may be changed by group 0" in status
        )
        sh("systemctl", "stop", hostile)
