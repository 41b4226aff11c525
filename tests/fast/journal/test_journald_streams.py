import os
import socket
from pathlib import Path

import pytest

from solo5_systemd.base.errors import HostError
from solo5_systemd.journal import journald as stream
from solo5_systemd.journal.journald import open_stream


def test_the_header_of_a_stream_identifies_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "stdout")
    monkeypatch.setattr(stream, "STDOUT_SOCKET", address)
    with socket.socket(socket.AF_UNIX) as journald:
        journald.bind(address)
        journald.listen()
        descriptor = open_stream("web", "solo5-task-web.service", 4)
        assert not os.get_inheritable(descriptor)
        os.write(descriptor, b"solo5-hvt: a complaint\n")
        os.close(descriptor)
        connection, _ = journald.accept()
        with connection, connection.makefile("rb") as received:
            assert received.read() == b"web\nsolo5-task-web.service\n172\n0\n0\n0\n0\nsolo5-hvt: a complaint\n"


def test_a_namespace_has_a_journald_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STDOUT_SOCKET", "/run/systemd/journal/stdout")
    with pytest.raises(HostError, match=r"/run/systemd/journal\.guests/stdout: No such file.*journald@guests\.service"):
        open_stream("web", "solo5-task-web.service", 4, "guests")


def test_a_stream_without_journald_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STDOUT_SOCKET", str(tmp_path / "nothing"))
    with pytest.raises(HostError, match="journald cannot be reached at .*: No such file or directory"):
        open_stream("web", "solo5-task-web.service", 4)
