import grp
import os
import re
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.interpreter import python

from solo5_systemd.base import paths
from solo5_systemd.base.errors import HostError, ImageError, NotFoundError, SettingsError
from solo5_systemd.base.names import Target
from solo5_systemd.host import tenders
from solo5_systemd.host.tenders import IGNORED_SIGNALS, TenderPath, execute, groups_for
from solo5_systemd.unit.tender import LIBRARIES


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """Mode and group of each device node, in place of the host's."""
    nodes = {"/dev/kvm": (stat.S_IFCHR | 0o660, 104), "/dev/net/tun": (stat.S_IFCHR | 0o666, 0)}

    def status(path: str) -> SimpleNamespace:
        if path not in nodes:
            raise FileNotFoundError(2, "No such file or directory", path)
        return SimpleNamespace(st_mode=nodes[path][0], st_gid=nodes[path][1])

    monkeypatch.setattr(tenders, "os", SimpleNamespace(stat=status))
    monkeypatch.setattr(grp, "getgrgid", {104: SimpleNamespace(gr_name="kvm")}.__getitem__)
    return nodes


@pytest.mark.parametrize(
    "target, nics, groups",
    [(Target.HVT, False, ("kvm",)), (Target.HVT, True, ("kvm",)), (Target.SPT, True, ()), (Target.SPT, False, ())],
)
async def test_a_task_gets_the_groups_that_its_nodes_want(
    nodes: dict[str, tuple[int, int]], target: Target, groups: tuple[str, ...], *, nics: bool
) -> None:
    assert groups_for(target, nics=nics) == groups
    assert await TenderPath([]).groups(target, nics=nics) == groups


@pytest.mark.parametrize(
    "node, state, words",
    [
        ("/dev/kvm", None, "/dev/kvm does not exist: .* run an spt image"),
        ("/dev/net/tun", None, "/dev/net/tun does not exist: .*modprobe tun"),
        ("/dev/kvm", (stat.S_IFREG | 0o666, 0), "/dev/kvm is not a character device"),
        ("/dev/kvm", (stat.S_IFCHR | 0o600, 0), "has mode 0600 and group 0: .*chgrp kvm"),
        ("/dev/kvm", (stat.S_IFCHR | 0o660, 0), "has mode 0660 and group 0"),
        ("/dev/net/tun", (stat.S_IFCHR | 0o644, 0), "has mode 0644 .*chmod 0666"),
        ("/dev/kvm", (stat.S_IFCHR | 0o660, 993), "belongs to group 993, which has no name: .*groupadd"),
    ],
)
def test_a_node_that_tenders_cannot_open_is_named_with_what_to_do(
    nodes: dict[str, tuple[int, int]], node: str, state: tuple[int, int] | None, words: str
) -> None:
    nodes.pop(node)
    if state:
        nodes[node] = state
    with pytest.raises(HostError, match=words):
        groups_for(Target.HVT, nics=True)


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Put a program into a directory of the search path."""

    def make(place: str, script: str | None = None, *, abi: int = 2, mode: int = 0o755) -> Path:
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        said = rf"printf '{path.name} tender, version v0.12.1\nABI version {abi}\n' >&2"
        path.write_text(f"#!/bin/sh\necho >>{tmp_path}/asked\n{said if script is None else script}\n")
        path.chmod(mode)
        return path

    return make


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TenderPath:
    monkeypatch.setattr(tenders, "VERSION_CACHE", tmp_path / "run" / "tenders")
    monkeypatch.setattr(tenders, "ROOT", str(tmp_path / "run" / "root"))
    return TenderPath([str(tmp_path / "bin"), str(tmp_path / "opt")])


def asked(tmp_path: Path) -> int:
    return (tmp_path / "asked").read_text().count("\n")


async def test_the_first_tender_with_the_abi_is_found_with_its_version(make: Make, path: TenderPath) -> None:
    make("bin/solo5-spt", abi=3)
    later, first = make("opt/solo5-spt"), make("bin/solo5-hvt")
    make("opt/solo5-hvt")
    assert (await path.find(Target.SPT)).path == str(later)
    tender = await path.find(Target.HVT)
    assert (tender.path, tender.target, tender.version, tender.abi_version) == (str(first), Target.HVT, "v0.12.1", 2)
    assert tender.loads == LIBRARIES, "of a script, the libraries are not known"
    assert tender.loads_because == f"{first} cannot be read as a 64-bit ELF file: wrong ELF identification"


async def test_where_all_are_of_another_abi_each_is_named(make: Make, path: TenderPath) -> None:
    one, other = make("bin/solo5-hvt", abi=1), make("opt/solo5-hvt", abi=3)
    words = f"needs solo5-hvt with ABI version 2: found only {one} (ABI 1), {other} (ABI 3)"
    with pytest.raises(ImageError, match=re.escape(words)):
        await path.find(Target.HVT)


async def test_where_there_is_none_the_places_are_named(make: Make, path: TenderPath, tmp_path: Path) -> None:
    make("bin/solo5-hvt", mode=0o644)
    (tmp_path / "opt" / "solo5-hvt").mkdir(parents=True)
    with pytest.raises(NotFoundError, match=re.escape(f"is not in {tmp_path}/bin, {tmp_path}/opt")):
        await path.find(Target.HVT)


@pytest.mark.parametrize("entry", ["bin", "bin/solo5-hvt"])
async def test_a_tender_that_others_may_write_is_an_error_and_not_executed(
    make: Make, path: TenderPath, tmp_path: Path, entry: str
) -> None:
    make("bin/solo5-hvt")
    make("opt/solo5-hvt")
    (tmp_path / entry).chmod(0o777)
    with pytest.raises(SettingsError, match=f"{tmp_path / entry} may be changed by every user"):
        await path.find(Target.HVT)
    assert not (tmp_path / "asked").exists()


async def test_a_library_that_others_may_write_is_not_executed_by_root(
    make: Make, path: TenderPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = make("lib/libseccomp.so.2", mode=0o777)
    make("bin/solo5-spt")
    monkeypatch.setattr(tenders, "mapped_files", lambda _: (str(library),))
    with pytest.raises(SettingsError, match=f"{library} may be changed by every user"):
        await path.find(Target.SPT)
    assert not (tmp_path / "asked").exists()


async def test_a_known_tender_is_executed_again_only_after_a_change(
    make: Make, path: TenderPath, tmp_path: Path
) -> None:
    make("bin/solo5-hvt")
    assert await path.find(Target.HVT) == await path.find(Target.HVT)
    assert asked(tmp_path) == 1
    make("bin/solo5-hvt", "printf 'solo5-hvt tender, version v0.13.0\nABI version 2\n' >&2")
    assert (await path.find(Target.HVT)).version == "v0.13.0"


async def test_the_root_of_tasks_is_there_and_open_whatever_the_callers_umask(
    make: Make, path: TenderPath, tmp_path: Path
) -> None:
    make("bin/solo5-hvt")
    before = os.umask(0o077)
    try:
        await path.find(Target.HVT)
    finally:
        os.umask(before)
    assert (tmp_path / "run" / "root").stat().st_mode & 0o777 == 0o755


async def test_a_memory_that_cannot_be_written_costs_only_time(make: Make, path: TenderPath, tmp_path: Path) -> None:
    make("bin/solo5-hvt")
    (tmp_path / "run").touch()
    assert await path.find(Target.HVT) == await path.find(Target.HVT)
    assert asked(tmp_path) == 2


@pytest.mark.parametrize(
    "script", ["true", "echo ABI version 2", r"printf 'a\0b\377' >&2", "echo no ABI version 2 >&2"]
)
async def test_a_program_with_other_output_is_no_tender(make: Make, path: TenderPath, script: str) -> None:
    make("bin/solo5-hvt", script)
    with pytest.raises(NotFoundError):
        await path.find(Target.HVT)


async def test_a_tender_that_hangs_is_ended_and_named(
    make: Make, path: TenderPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenders, "VERSION_TIMEOUT_S", 1.0)
    program = make("bin/solo5-hvt", f"echo $$ >{tmp_path}/pid\nexec sleep 60")
    with pytest.raises(HostError, match=re.escape(f"{program} --version did not answer within 1 seconds")):
        await path.find(Target.HVT)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_file_that_is_no_program_is_named(path: TenderPath, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "solo5-hvt"
    program.parent.mkdir()
    program.write_bytes(b"\x7fELF, or so it says")
    program.chmod(0o755)
    with pytest.raises(HostError, match=re.escape(f"{program} cannot be executed: Exec format error")):
        await path.find(Target.HVT)


@pytest.mark.parametrize(
    ("files", "enabled"),
    [
        ({}, []),
        ({"sys/module/apparmor/parameters/enabled": "N\n"}, []),
        ({"sys/module/apparmor/parameters/enabled": "Y\n"}, ["apparmor"]),
        ({"sys/fs/selinux/status": ""}, ["selinux"]),
    ],
)
async def test_security_modules_are_those_that_systemd_uses(
    tmp_path: Path, files: dict[str, str], enabled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "SYS", tmp_path / "sys")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert await TenderPath([]).security_modules() == enabled


def test_what_python_ignores_is_ignored_no_more() -> None:
    program = "from solo5_systemd.host.tenders import execute; execute(['/bin/cat', '/proc/self/status'])"
    [ignored] = re.findall(r"SigIgn:\t([0-9a-f]{16})\n", python(program).stdout)
    assert not [
        number for number in IGNORED_SIGNALS if int(ignored, 16) & 1 << number - 1
    ]  # of others, whoever runs this may


def test_a_missing_program_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(tenders, "IGNORED_SIGNALS", ())  # by this very process, too
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: limits.append(limit))
    with pytest.raises(NotFoundError, match="/nothing cannot be executed: No such file or directory"):
        execute(["/nothing"])
    assert limits == [(resource.RLIMIT_CORE, (0, 0))], "a core file would contain the guest's memory"
