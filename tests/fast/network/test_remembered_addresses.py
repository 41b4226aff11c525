"""The addresses that declared tasks had last, as the network service reads them."""

import json
import os
import time
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.fast.network.test_ipam import nic

from solo5_systemd.base.declared_units import SOURCES
from solo5_systemd.base.errors import HostError, SettingsError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import remembered_addresses
from solo5_systemd.network.model import NicRequest, PortRequest, Protocol
from solo5_systemd.network.remembered_addresses import (
    LastRequest,
    RememberedAddresses,
    declaration_digest,
    read_request,
    write_request,
)
from solo5_systemd.settings.records import document

WEB, MAC = TaskName("web"), "02:00:00:00:00:09"
NICS = (nic(ip="10.77.0.5", mac=MAC), nic("management"))


WHOLE = json.dumps(document(LastRequest(nics=NICS), complete=True)).encode()


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(remembered_addresses, "ADDRESSES", tmp_path)
    return tmp_path


def write_addresses(task: TaskName, nics: Sequence[NicRequest]) -> None:
    write_request(task, LastRequest(nics=tuple(nics)))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[TaskName]:
    """The tasks whose file was read."""
    tasks: list[TaskName] = []

    def counted(task: TaskName) -> LastRequest:
        tasks.append(task)
        return read_request(task)

    monkeypatch.setattr(remembered_addresses, "read_request", counted)
    return tasks


def test_what_is_written_is_read(directory: Path) -> None:
    directory.rmdir()
    assert read_request(WEB) == LastRequest()
    write_addresses(WEB, NICS)
    assert read_request(WEB) == LastRequest(nics=NICS)
    assert RememberedAddresses()() == {IPv4Address("10.77.0.5"): "web", MAC: "web"}
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_file_is_read_again_only_if_the_directory_has_changed(
    tmp_path: Path, read: list[TaskName], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.time() + 3600
    write_addresses(WEB, NICS)
    subject = RememberedAddresses()
    monkeypatch.setattr(time, "time", lambda: later)
    assert subject() is subject()
    assert read == ["web"]
    write_addresses(TaskName("other"), [nic(ip="10.77.0.6")])
    os.utime(tmp_path, (7, 7))  # the clock of file times has a tick of some milliseconds
    assert subject()[IPv4Address("10.77.0.6")] == "other"
    assert read == ["web", "other"], "the unchanged file is not read again"
    (tmp_path / "web.json").unlink()
    os.utime(tmp_path, (8, 8))
    assert set(subject()) == {IPv4Address("10.77.0.6")}


def test_changes_within_the_resolution_of_file_times_are_seen(tmp_path: Path) -> None:
    subject = RememberedAddresses()
    for number in range(2, 30):
        write_addresses(WEB, [nic(ip=f"10.77.0.{number}")])
        os.utime(tmp_path, (7, 7))
        assert set(subject()) == {IPv4Address(f"10.77.0.{number}")}


def test_without_a_directory_nothing_is_remembered(directory: Path) -> None:
    directory.rmdir()
    subject = RememberedAddresses()
    assert subject() == {}
    write_addresses(WEB, NICS)
    assert len(subject()) == 2
    (directory / "web.json").unlink()
    directory.rmdir()
    assert subject() == {}


def test_a_damaged_file_is_left_out_with_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, read: list[TaskName]
) -> None:
    write_addresses(WEB, NICS)
    (tmp_path / "json.json").write_text("{")
    (tmp_path / "nested.json").write_text("[" * 60_000)
    (tmp_path / "types.json").write_text('[["service", 1]]')
    (tmp_path / "values.json").write_text('[["service", "default", "10.77.0", "", ""]]')
    (tmp_path / "large.json").write_text(" " * 300_000 + "[]")
    (tmp_path / "link.json").symlink_to("nowhere")
    (tmp_path / "directory.json").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "no task.json").touch()
    (tmp_path / ".web.json.new").touch()
    (tmp_path / "web.txt").touch()
    subject = RememberedAddresses()
    assert set(subject().values()) == {"web"}
    for name in ("json", "nested", "types", "values", "large", "link", "directory", "fifo"):
        assert f"the addresses that declared task {name} had last are not known: " in caplog.text
    assert len(caplog.records) == 8
    count = len(read)
    subject()
    assert len(read) == count, "once"


def test_a_file_of_other_users_is_refused(tmp_path: Path) -> None:
    write_addresses(WEB, NICS)
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match=f"{tmp_path} may be changed by every user"):
        read_request(WEB)
    assert RememberedAddresses()() == {}


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(remembered_addresses, "ADDRESSES", tmp_path / "file/declared")
    with pytest.raises(HostError, match="cannot be written: Not a directory"):
        write_addresses(WEB, NICS)


def test_the_last_request_is_that_of_one_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_addresses, "declaration_directory", lambda task: str(tmp_path / "declared"))
    sources = tmp_path / "declared" / SOURCES
    sources.parent.mkdir()
    sources.write_text("Publish=80:80")
    ports = (PortRequest(nic=NICS[0].nic, host_port=80, port=80, protocol=Protocol.TCP),)
    digest = declaration_digest(WEB)
    last = LastRequest(nics=NICS, ports=ports, idle_s=60, idle_stops=True, declaration=digest)
    subject = RememberedAddresses()
    assert subject.request(WEB) is None
    write_request(WEB, last)
    assert subject.request(WEB) == last
    sources.write_text("Publish=81:80")
    assert subject.request(WEB) is None
    sources.unlink()
    assert subject.request(WEB) is None


DAMAGED = (b"", WHOLE[:-20], b"\xff" + WHOLE, b"[]", b"[" * 100_000, WHOLE.replace(b'""', b"1"))


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_request_is_unknown(tmp_path: Path, content: bytes) -> None:
    subject = RememberedAddresses()
    write_request(WEB, LastRequest(nics=NICS))
    assert subject.request(WEB) is not None
    (tmp_path / f"{WEB}.json").write_bytes(content)
    assert subject.request(WEB) is None
