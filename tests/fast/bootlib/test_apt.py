"""Where a machine downloads Debian from, by what its own apt-get answers."""

from pathlib import Path

import pytest
from tests.support.bootlib import apt
from tests.support.bootlib.errors import MachineError

ARCHIVE = apt.Source(uri="http://mirror.example/debian", release="bookworm")


def install_apt_get(bin_directory: Path, monkeypatch: pytest.MonkeyPatch, update: str) -> None:
    """Install an apt-get whose package lists are the file `lists`; `update` is a shell command."""
    program = bin_directory / "apt-get"
    program.write_text(f'#!/bin/sh\ncd {bin_directory}\nif [ "$1" = update ]; then {update}; else cat lists; fi\n')
    program.chmod(0o755)
    (bin_directory / "lists").touch()
    monkeypatch.setenv("PATH", str(bin_directory), prepend=":")


def test_main_archives_are_read_from_the_package_lists_without_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_apt_get(tmp_path, monkeypatch, "exit 1")
    (tmp_path / "lists").write_text(
        f"{ARCHIVE.uri}|bookworm|main\nhttp://other.example|bookworm|contrib\n{ARCHIVE.uri}|bookworm|main\n"
    )
    assert apt.configured_sources() == [ARCHIVE]


def test_package_lists_that_were_deleted_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_apt_get(tmp_path, monkeypatch, f"echo '{ARCHIVE.uri}|bookworm|main' > lists")
    assert apt.configured_sources() == [ARCHIVE]


def test_an_update_that_fails_gives_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_apt_get(tmp_path, monkeypatch, "echo 'E: no network' >&2; exit 100")
    with pytest.raises(MachineError, match=r"apt-get update failed: E: no network"):
        apt.configured_sources()
