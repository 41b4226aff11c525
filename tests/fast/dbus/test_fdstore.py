import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from solo5_systemd.base import descriptors
from solo5_systemd.dbus import fdstore


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield notify


def test_descriptors_are_stored_by_name_as_one(systemd: socket.socket) -> None:
    """And can be had again any number of times."""
    read_end, write_end = os.pipe()
    fdstore.store("c7.1", [write_end, read_end])
    message, [carrier], _, _ = socket.recv_fds(systemd, 100, 4)
    assert message == b"FDSTORE=1\nFDNAME=c7.1\nFDPOLL=0"
    for text in (b"first", b"again"):
        fds = fdstore.carried(carrier)
        os.write(fds[0], text)
        assert os.read(fds[1], 10) == text
        for fd in fds:
            os.close(fd)
    os.close(write_end)
    os.close(carrier)
    assert os.read(read_end, 10) == b"", "with the stored one, all that it carries is closed"
    os.close(read_end)


def test_as_many_descriptors_as_fit_into_a_message_are_stored_together(systemd: socket.socket) -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(fdstore.TOGETHER_MAX)]
    fdstore.store("t80", fds)
    _, [carrier], _, _ = socket.recv_fds(systemd, 100, 4)
    found = fdstore.carried(carrier)
    assert len(found) == len(fds)
    for fd in (*fds, *found, carrier):
        os.close(fd)


def test_what_cannot_be_stored_is_logged(systemd: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    fdstore.store("c7.1", [1 << 20])
    assert "descriptors c7.1 not kept over a restart: Bad file descriptor" in caplog.text


def test_a_descriptor_is_removed_by_name(systemd: socket.socket) -> None:
    fdstore.remove("o7")
    assert systemd.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=o7"


def test_there_is_no_effect_without_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    fdstore.store("o7", [0])
    fdstore.remove("o7")
    assert fdstore.restored() == {}


def test_stored_descriptors_are_restored_by_name(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = []
    with Path("/dev/null").open() as file:
        for _ in range(3):
            fdstore.store("any", [file.fileno(), file.fileno()])
            passed += socket.recv_fds(systemd, 100, 4)[1]
        first = 1 << 10
        carriers = [os.dup2(fd, first + number) for number, fd in enumerate(passed)]
        for fd in passed:
            os.close(fd)
    for fd in carriers:
        os.set_inheritable(fd, True)
    monkeypatch.setattr(fdstore, "LISTEN_FDS_START", carriers[0])
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "3")
    monkeypatch.setenv("LISTEN_FDNAMES", "c7.1:c7.2:c7.1")
    found = fdstore.restored()
    assert {name: len(fds) for name, fds in found.items()} == {"c7.1": 2, "c7.2": 2}
    for fds in found.values():
        for fd in fds:
            assert fd >= descriptors.FD_SETSIZE, "libraries that call select(2) get the low numbers"
            assert not os.get_inheritable(fd)
            os.close(fd)
    for fd in carriers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_descriptor_keeps_its_number_where_no_higher_one_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "FD_SETSIZE", 1 << 30)
    with Path("/dev/null").open() as file:
        os.set_inheritable(file.fileno(), True)
        assert descriptors.out_of_select(file.fileno()) == file.fileno()
        assert not os.get_inheritable(file.fileno())


def test_descriptors_of_another_process_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert fdstore.restored() == {}
