"""Detection of missing dependencies."""

import socket
import sys
from pathlib import Path

import pytest

from solo5_systemd.dependencies import DEPENDENCIES, NETWORKD, Dependency, Kind
from solo5_systemd.host import installed
from solo5_systemd.host.installed import missing


def only(monkeypatch: pytest.MonkeyPatch, kind: Kind, name: str) -> Dependency:
    each = Dependency(kind=kind, name=name, debian="it", needed_by=())
    monkeypatch.setattr(installed, "DEPENDENCIES", (each,))
    return each


@pytest.mark.parametrize("name", ["json", "xml.dom"])
def test_module_that_can_be_found_is_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    only(monkeypatch, Kind.MODULE, name)
    assert missing() == ()


@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.module", "xml.no_such_module"])
def test_module_that_cannot_be_found_is_missing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    each = only(monkeypatch, Kind.MODULE, name)
    assert missing() == (each,)


def test_directory_without_a_modules_files_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "was_removed" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    each = only(monkeypatch, Kind.MODULE, "was_removed")
    assert missing() == (each,)


def test_library_is_one_that_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, Kind.LIBRARY, "libc.so.6")
    assert missing() == ()
    each = only(monkeypatch, Kind.LIBRARY, "libnone.so.0")
    assert missing() == (each,)


def test_program_is_a_file_that_can_be_executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    each = only(monkeypatch, Kind.PROGRAM, "/bin/tool")
    assert missing(tmp_path) == (each,)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").touch(0o755)
    assert missing(tmp_path) == ()


def test_socket_is_no_other_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    each = only(monkeypatch, Kind.SOCKET, "/bus")
    (tmp_path / "bus").touch()
    assert missing(tmp_path) == (each,)
    (tmp_path / "bus").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "bus"))
        assert missing(tmp_path) == ()


def test_only_what_one_program_needs_is_looked_for(tmp_path: Path) -> None:
    found = missing(tmp_path, program=NETWORKD)
    assert {each.name for each in found} >= {"/run/dbus/system_bus_socket"}
    assert [each for each in found if NETWORKD not in each.needed_by] == []
    assert [each for each in DEPENDENCIES if NETWORKD not in each.needed_by]
