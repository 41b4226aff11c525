"""The probe, with a directory as the root of the host, and libnftables replaced."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.fast.host.test_checks import GOOD, fact

from solo5_systemd.base.dependencies import DEPENDENCIES, DHCP_SERVER, Dependency, Kind
from solo5_systemd.base.names import NetworkName, Target
from solo5_systemd.host import probe as module
from solo5_systemd.host.checks import Kernel
from solo5_systemd.host.probe import FILES, _kvm_problem, missing_dependencies, probe, read_kernel
from solo5_systemd.settings.network_policy import Network
from solo5_systemd.settings.solo5_toml import Settings, parse_settings


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of another host, whose kernel is not asked for modules."""
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name, found in (("missing_modules", None), ("lacks_log", False)):
        monkeypatch.setattr(module, name, lambda found=found: found)


async def test_an_empty_machine_is_looked_at_without_an_error(tmp_path: Path) -> None:
    host = await probe()
    assert (host.booted, host.controllers) == (False, None)
    assert host.files == {f"/{name}": False for name in FILES}
    assert {each for each in DEPENDENCIES if each.kind in (Kind.PROGRAM, Kind.SOCKET)} <= set(host.missing)
    assert host.settings == ""
    assert set(host.devices) == {"/dev/kvm", "/dev/net/tun"}


async def test_what_is_there_is_found(tmp_path: Path) -> None:
    for name in ("run/systemd/system", "sys/fs/cgroup", "etc/solo5", "var/lib/solo5/images"):
        (tmp_path / name).mkdir(parents=True)
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "etc/solo5/a.toml").write_text(f'tender_paths = ["{tmp_path}"]\n')
    host = await probe()
    assert host.booted
    assert host.controllers == ("cpu", "memory", "pids")
    assert all(host.files.values())
    assert host.tender_paths == (str(tmp_path),)
    assert host.tenders == ()
    assert host.store[0] == str(tmp_path / "var/lib/solo5/images")


async def test_a_tender_that_cannot_be_executed_is_a_fact_beside_the_other(tmp_path: Path) -> None:
    hvt, spt = (tmp_path / f"tenders/solo5-{target}" for target in Target)
    hvt.parent.mkdir()
    for tender, text, mode in ((hvt, "", 0o777), (spt, "#!/bin/sh\necho ABI version 2 >&2\n", 0o755)):
        tender.write_text(text)
        tender.chmod(mode)
    host = await probe(settings=Settings(tender_paths=(str(hvt.parent),)))
    assert [each.target for each in host.tenders] == [Target.SPT]
    assert host.unusable[Target.HVT].startswith(f"{hvt} may be changed by every user: expected it to be root's")
    assert fact(replace(GOOD, tenders=host.tenders, unusable=host.unusable), "solo5-hvt").advice.startswith(str(hvt))
    hvt.write_text("no program")
    hvt.chmod(0o755)
    host = await probe(settings=Settings(tender_paths=(str(hvt.parent),)))
    assert f"{hvt} cannot be executed: Exec format error." in host.unusable[Target.HVT]


async def test_wrong_settings_are_a_fact_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "etc/solo5").mkdir(parents=True)
    (tmp_path / "etc/solo5/a.toml").write_text("nonsense = 1\n")
    tmp_path.chmod(0o755)
    host = await probe()
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
    host = await probe(systemd=257, settings=Settings(log_namespace="guests"))
    assert (host.log_namespace, host.namespace_problem) == ("guests", problem)


def only(monkeypatch: pytest.MonkeyPatch, kind: Kind, name: str) -> Dependency:
    each = Dependency(kind=kind, name=name, debian="it")
    monkeypatch.setattr(module, "DEPENDENCIES", (each,))
    return each


@pytest.mark.parametrize(
    ("kind", "name", "is_there"),
    [
        *((Kind.MODULE, name, True) for name in ("json", "xml.dom")),
        *((Kind.MODULE, name, False) for name in ("no_such_module", "no_such_package.module", "xml.no_such_module")),
        *((Kind.LIBRARY, "libc.so.6", True), (Kind.LIBRARY, "libnone.so.0", False)),
    ],
)
def test_a_module_is_found_and_a_library_loaded(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, name: str, is_there: bool
) -> None:
    each = only(monkeypatch, kind, name)
    assert missing_dependencies(Settings()) == (() if is_there else (each,))


def test_an_empty_directory_is_no_module_and_no_other_file_a_program_or_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "was_removed" / "__pycache__").mkdir(parents=True)
    for name in ("tool", "bus"):
        (tmp_path / name).touch()
    for kind, name in ((Kind.MODULE, "was_removed"), (Kind.PROGRAM, "/tool"), (Kind.SOCKET, "/bus")):
        each = only(monkeypatch, kind, name)
        assert missing_dependencies(Settings()) == (each,)
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "bus").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "bus"))
        for kind, name in ((Kind.PROGRAM, "/tool"), (Kind.SOCKET, "/bus")):
            only(monkeypatch, kind, name)
            assert missing_dependencies(Settings()) == ()


async def test_the_dhcp_server_is_missing_where_a_network_has_one(tmp_path: Path) -> None:
    (network,) = parse_settings({"network": {"default": {"dhcp": True}}}).networks
    assert DHCP_SERVER in (await probe(settings=Settings(networks=(network,)))).missing
    assert DHCP_SERVER not in (await probe(settings=Settings())).missing
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/dnsmasq").touch(0o755)
    assert DHCP_SERVER not in (await probe(settings=Settings(networks=(network,)))).missing


@pytest.fixture
def nftables(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Replace libnftables by one that has no rules, or fails: tests/contract/test_network_other_programs.py has it."""

    def answer(code: int) -> None:
        class Nftables:
            def set_json_output(self, on: bool) -> None:
                assert on

            set_stateless_output = set_json_output

            def json_cmd(self, _: object) -> tuple[int, object, str]:
                return code, {"nftables": []} if code == 0 else {}, ""

        module = ModuleType("nftables")
        module.Nftables = Nftables  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "nftables", module)
        monkeypatch.setattr(os, "geteuid", lambda: 0)

    return answer


@pytest.mark.parametrize("family", ["ip", "ip6"])
def test_older_rules_count_where_they_are_used(
    nftables: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str
) -> None:
    nftables(0)
    network = [Network(name=NetworkName("default"), bridge="solo5-default", has_ipv6=True)]
    names = tmp_path / f"proc/net/{family}_tables_names"
    names.parent.mkdir(parents=True)
    names.write_text("filter\n")
    monkeypatch.setattr(module, "_PROGRAMS", saving(tmp_path, f"{family}tables-legacy-save", ":FORWARD DROP [0:0]\n"))
    [found] = read_kernel(network).dropping_chains or ()
    assert found.remedy[0] == f"{family}tables-legacy -I FORWARD -i solo5-default -j ACCEPT"
    names.write_text("nat\n")
    assert read_kernel(network).dropping_chains == []
    names.write_text("filter\n")
    monkeypatch.setattr(module, "_PROGRAMS", str(tmp_path / "nowhere"))
    assert read_kernel(network).dropping_chains == []


def saving(directory: Path, name: str, rules: str) -> str:
    """Return a directory of programs, of which one prints rules."""
    program = directory / "programs" / name
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{rules}END\n")
    program.chmod(0o755)
    return str(program.parent)


def test_what_cannot_be_read_is_unknown(nftables: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    nftables(-1)
    found = read_kernel(())
    assert found == Kernel(run_free=found.run_free)
    monkeypatch.setitem(sys.modules, "nftables", None)
    assert read_kernel(()).dropping_chains is None


def test_kvm_is_usable_where_it_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "kvm"
    node.touch()
    monkeypatch.setattr(module, "KVM", str(node))
    assert _kvm_problem() == ""
    monkeypatch.setattr(module, "KVM", str(tmp_path))
    assert _kvm_problem() == f"{tmp_path} cannot be opened: Is a directory."
