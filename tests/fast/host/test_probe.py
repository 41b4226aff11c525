"""The probe, with a directory as the root of the host."""

import socket
import sys
from pathlib import Path

import pytest

from solo5_systemd.base.dependencies import DEPENDENCIES, DHCP_SERVER, Dependency, Kind
from solo5_systemd.host import probe as module
from solo5_systemd.host.probe import FILES, missing_dependencies, probe
from solo5_systemd.settings.solo5_toml import Settings, parse_settings


async def test_an_empty_machine_is_looked_at_without_an_error(tmp_path: Path) -> None:
    host = await probe(tmp_path)
    assert (host.booted, host.controllers, host.store) == (False, None, None)
    assert host.files == {f"/{name}": False for name in FILES}
    assert {each for each in DEPENDENCIES if each.kind in (Kind.PROGRAM, Kind.SOCKET)} <= set(host.missing)
    assert host.settings == ""
    assert set(host.devices) == {"/dev/kvm", "/dev/net/tun"}


async def test_what_is_there_is_found(tmp_path: Path) -> None:
    for name in ("run/systemd/system", "sys/fs/cgroup", "proc", "etc/solo5", "var/lib/solo5/images"):
        (tmp_path / name).mkdir(parents=True)
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu sse2 svm\n")
    (tmp_path / "etc/solo5/a.toml").write_text(f'tender_paths = ["{tmp_path}"]\n')
    host = await probe(tmp_path)
    assert (host.booted, host.virtualization) == (True, True)
    assert host.controllers == ("cpu", "memory", "pids")
    assert all(host.files.values())
    assert host.tender_paths == (str(tmp_path),)
    assert host.tenders == ()
    assert host.store is not None


async def test_a_processor_without_virtualization_is_found(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: fpu sse2\n")
    assert (await probe(tmp_path)).virtualization is False


async def test_a_tender_that_others_may_write_is_a_fact_and_no_error(tmp_path: Path) -> None:
    tender = tmp_path / "tenders/solo5-hvt"
    tender.parent.mkdir()
    tender.touch()
    tender.chmod(0o777)
    host = await probe(tmp_path, settings=Settings(tender_paths=(str(tender.parent),)))
    assert host.tenders == ()
    assert host.settings.startswith(f"{tender} may be changed by every user: expected it to be root's")


async def test_wrong_settings_are_a_fact_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "etc/solo5").mkdir(parents=True)
    (tmp_path / "etc/solo5/a.toml").write_text("nonsense = 1\n")
    tmp_path.chmod(0o755)
    host = await probe(tmp_path)
    assert "nonsense is not a known key" in host.settings
    assert host.tender_paths


@pytest.mark.parametrize(
    ("shown", "problem"),
    [
        ("LoadState=loaded\nActiveState=inactive\n", ""),
        ("LoadState=loaded\nActiveState=active\n", ""),
        ("LoadState=loaded\nActiveState=failed\n", "its journald is failed"),
        ("LoadState=masked\nActiveState=inactive\n", "its journald is masked"),
        ("LoadState=not-found\nActiveState=inactive\n", "its journald is not-found"),
    ],
)
async def test_a_journal_namespace_needs_a_journald_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, problem: str
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\nprintf '{shown}'\n")
    systemctl.chmod(0o755)
    monkeypatch.setattr(module, "SYSTEMCTL", str(systemctl))
    host = await probe(tmp_path, systemd=257, settings=Settings(log_namespace="guests"))
    assert (host.log_namespace, host.namespace_problem) == ("guests", problem)


def only(monkeypatch: pytest.MonkeyPatch, kind: Kind, name: str) -> Dependency:
    each = Dependency(kind=kind, name=name, debian="it", needed_by=())
    monkeypatch.setattr(module, "DEPENDENCIES", (each,))
    return each


@pytest.mark.parametrize("name", ["json", "xml.dom"])
def test_module_that_can_be_found_is_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    only(monkeypatch, Kind.MODULE, name)
    assert missing_dependencies() == ()


@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.module", "xml.no_such_module"])
def test_module_that_cannot_be_found_is_missing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    each = only(monkeypatch, Kind.MODULE, name)
    assert missing_dependencies() == (each,)


def test_directory_without_a_modules_files_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "was_removed" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    each = only(monkeypatch, Kind.MODULE, "was_removed")
    assert missing_dependencies() == (each,)


def test_library_is_one_that_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, Kind.LIBRARY, "libc.so.6")
    assert missing_dependencies() == ()
    each = only(monkeypatch, Kind.LIBRARY, "libnone.so.0")
    assert missing_dependencies() == (each,)


def test_program_is_a_file_that_can_be_executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    each = only(monkeypatch, Kind.PROGRAM, "/bin/tool")
    assert missing_dependencies(tmp_path) == (each,)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").touch(0o755)
    assert missing_dependencies(tmp_path) == ()


def test_socket_is_no_other_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    each = only(monkeypatch, Kind.SOCKET, "/bus")
    (tmp_path / "bus").touch()
    assert missing_dependencies(tmp_path) == (each,)
    (tmp_path / "bus").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "bus"))
        assert missing_dependencies(tmp_path) == ()


async def test_the_dhcp_server_is_missing_where_a_network_has_one(tmp_path: Path) -> None:
    (network,) = parse_settings({"network": {"default": {"dhcp": True}}}).networks
    assert DHCP_SERVER in (await probe(tmp_path, settings=Settings(networks=(network,)))).missing
    assert DHCP_SERVER not in (await probe(tmp_path, settings=Settings())).missing
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/dnsmasq").touch(0o755)
    assert DHCP_SERVER not in (await probe(tmp_path, settings=Settings(networks=(network,)))).missing
