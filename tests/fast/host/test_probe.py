"""The probe, with a directory as the root of the host."""

from pathlib import Path

import pytest

from solo5_systemd.dependencies import DEPENDENCIES, Kind
from solo5_systemd.host import probe as module
from solo5_systemd.host.probe import FILES, JOURNALD_UNITS, probe
from solo5_systemd.settings.model import Settings


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


async def test_wrong_settings_are_a_fact_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "etc/solo5").mkdir(parents=True)
    (tmp_path / "etc/solo5/a.toml").write_text("nonsense = 1\n")
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
    ],
)
async def test_a_journal_namespace_needs_its_units_and_a_journald_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, problem: str
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\nprintf '{shown}'\n")
    systemctl.chmod(0o755)
    monkeypatch.setattr(module, "SYSTEMCTL", str(systemctl))
    settings = Settings(log_namespace="guests")
    lacking = await probe(tmp_path, systemd=257, settings=settings)
    assert lacking.namespace_problem == f"systemd has no {', '.join(JOURNALD_UNITS)}"
    directory = tmp_path / "usr/lib/systemd/system"
    directory.mkdir(parents=True)
    for name in JOURNALD_UNITS:
        (directory / name).touch()
    host = await probe(tmp_path, systemd=257, settings=settings)
    assert (host.log_namespace, host.namespace_problem) == ("guests", problem)
