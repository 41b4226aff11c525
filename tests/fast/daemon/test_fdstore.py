import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from solo5_systemd.daemon import fdstore


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield notify


def test_a_descriptor_is_stored_by_name(systemd: socket.socket) -> None:
    read_end, write_end = os.pipe()
    fdstore.store("o7", write_end)
    message, fds, _, _ = socket.recv_fds(systemd, 100, 4)
    assert message == b"FDSTORE=1\nFDNAME=o7\nFDPOLL=0"
    os.write(fds[0], b"same")
    assert os.read(read_end, 10) == b"same"
    for fd in (read_end, write_end, *fds):
        os.close(fd)


def test_a_descriptor_is_removed_by_name(systemd: socket.socket) -> None:
    fdstore.remove("o7")
    assert systemd.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=o7"


def test_there_is_no_effect_without_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    fdstore.store("o7", 0)
    fdstore.remove("o7")
    assert fdstore.restored() == {}


def test_stored_descriptors_are_restored_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    for fd in fds:
        os.set_inheritable(fd, True)
    assert fds == list(range(fds[0], fds[0] + 3))
    monkeypatch.setattr(fdstore, "LISTEN_FDS_START", fds[0])
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "3")
    monkeypatch.setenv("LISTEN_FDNAMES", "o7:e7:o7")
    found = fdstore.restored()
    assert found.keys() == {"o7", "e7"}
    assert min(found.values()) >= fdstore.FD_SETSIZE, "libraries that call select(2) get the low numbers"
    for fd in found.values():
        assert not os.get_inheritable(fd)
        os.close(fd)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_descriptor_keeps_its_number_where_no_higher_one_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fdstore, "FD_SETSIZE", 1 << 30)
    with Path("/dev/null").open() as file:
        os.set_inheritable(file.fileno(), True)
        assert fdstore.out_of_select(file.fileno()) == file.fileno()
        assert not os.get_inheritable(file.fileno())


def test_descriptors_of_another_process_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert fdstore.restored() == {}
