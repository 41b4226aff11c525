"""Declarations beside the real systemd: the same words, known settings; and what export prints of a task that runs."""

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Files, Machine, Runner, given, ok, sh, systemctl, unit_property

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.declared.declaration import Declaration, parse_declaration, write_declaration
from solo5_systemd.declared.files import read_sources
from solo5_systemd.declared.syntax import Source
from solo5_systemd.declared.unit_keys import INSTALL, SERVICE_PASSED_ON, SINCE, UNIT
from solo5_systemd.task.properties import SETTABLE

UNITS = Path("/run/systemd/system")
ETC = Path("/etc/solo5")


@pytest.fixture
def unit(machine: Machine) -> Iterator[Path]:
    path = UNITS / "declared@.service"
    yield path
    path.unlink(missing_ok=True)
    systemctl("daemon-reload")


def declared(text: str, name: str) -> Declaration:
    return parse_declaration(name, [Source(path=name, content=text.encode())])


LINES = [
    "a  b\tc",
    '"a b" \'c d\' ""',
    '--name="a b"c',
    '"it\'s" \'say "x"\'',
    r"a\sb \x41\101 \u00e9 \U0001F600 \\ \" \'",
    r"\xc3\xa9 \n\t",
    "a \\\n# a comment between\n  b",
    "%i %I %n %N %p %P %j %J %f %% %t %S",
    "{mirage} --ipv4={net.service.ipv4_cidr}",
]


def test_words_and_specifiers_are_those_of_systemd(unit: Path) -> None:
    """What follows ExecStart=/bin/true in a unit has the same words as Argument= in a declaration."""
    name = "declared@a-b"
    for line in LINES:
        unit.write_text(f"[Service]\nExecStart=/bin/true {line}\n")
        systemctl("daemon-reload")
        bus = "org.freedesktop.systemd1"
        ok("busctl", "call", bus, "/org/freedesktop/systemd1", f"{bus}.Manager", "LoadUnit", "s", f"{name}.service")
        path = "/org/freedesktop/systemd1/unit/declared_40a_2db_2eservice"
        reply = json.loads(ok("busctl", "--json=short", "get-property", bus, path, f"{bus}.Service", "ExecStart"))
        words = reply["data"][0][1][1:]
        text = declared(f"[Unikernel]\nImage=/a\nArgument={line}\n", name).workload.arguments
        assert list(text) == words, line


def test_each_setting_that_is_passed_on_is_one_of_systemd(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "declared.service"
    exec_start = "ExecStart=/bin/true\n"
    sections = {"Unit": UNIT, "Service": {*SERVICE_PASSED_ON, *SETTABLE}, "Install": INSTALL}
    text = "".join(
        f"[{section}]\n{exec_start if section == 'Service' else ''}" + "".join(f"{key}=\n" for key in sorted(keys))
        for section, keys in sections.items()
    )
    path.write_text(text)
    errors = sh("systemd-analyze", "verify", str(path)).stderr
    unknown = set(re.findall(r"Unknown key(?: name)? '(\w+)'", errors))
    release = int(ok("systemctl", "--version").split()[1])
    assert unknown == {key for key, since in SINCE.items() if since > release}, errors
    path.write_text(text.replace("[Service]\n", "[Service]\nNoSuchSetting=\n"))
    assert "NoSuchSetting" in sh("systemd-analyze", "verify", str(path)).stderr, "verify does report one"


def test_a_reset_that_systemd_would_ignore_is_made_before_it_reads_the_unit(unit: Path) -> None:
    """The reason for `_passed_on`: neither a dependency nor Restart= can be reset by an empty value."""
    lines = "[Unit]\nAfter=a.target\nAfter=\n[Service]\nRestart=always\nRestart=\n"
    unit.write_text(f"{lines}ExecStart=/bin/true\n")
    systemctl("daemon-reload")
    assert unit_property("declared@a.service", "Restart") == "always"
    assert "a.target" in unit_property("declared@a.service", "After").split()
    found = declared(f"[Unikernel]\nImage=/a\n{lines}", "declared")
    assert (found.unit, found.service) == ((), ())


def test_export_is_what_was_typed(place: Files, run: Runner) -> None:
    disk = given(place("/var/tmp/export.img"), bytes(64 << 10))
    options = (
        *("--memory", "48M", "--cpus", "0.5", "--label", "NOTE=a b 5%", "--tender", "hvt"),
        *("--block", f"storage={disk},sector-size=4096"),
    )
    name = run("disk.hvt", "stay", "{name}", "it's {{x}} 50%", options=options)
    text = ok("solo5ctl", "export", name)
    found = declared(text, name).workload
    assert found.arguments == ("stay", name, "it's {{x}} 50%"), "the name was a placeholder"
    assert (found.image, found.tender, found.memory) == (str(GUESTS / "disk.hvt"), "hvt", 48 << 20)
    assert found.log_fields == (("NOTE", "a b 5%"),)
    assert [(each.disk, each.path, each.sector_size) for each in found.disks] == [("storage", str(disk), 4096)]
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    assert found.cpus == (0.5 if controllers.exists() and "cpu" in controllers.read_text().split() else None)
    assert "solo5ctl export" in text
    assert sh("solo5ctl", "export", name, user="nobody").returncode == 125


def test_a_task_that_is_declared_is_a_file_of_roots(place: Files) -> None:
    path = place(ETC / "t-declared.unikernel")
    path.unlink()
    done = sh("solo5ctl", "run", "--declare", "t-declared", "-m", "64M", f"{GUESTS}/hello.spt", "a b", "{name}")
    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr
    assert "systemctl enable --now t-declared" in done.stderr
    status = path.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o644)
    found = parse_declaration("t-declared", read_sources("t-declared"))
    assert found.workload.arguments == ("a b", "{name}")
    assert write_declaration(found.workload) == path.read_text()
    assert sh("solo5ctl", "run", "--declare", "t-declared", f"{GUESTS}/hello.spt").returncode == 125
    path.chmod(0o666)
    with pytest.raises(SettingsError, match="may be changed by every user"):
        read_sources("t-declared")
