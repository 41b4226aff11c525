"""What a machine of tests is made of: archives, programs, agent and settings of the host, and what is kept of it."""

import ast
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support import bootlib
from tests.support.bootlib import agent, apt, cache, carried
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


# -- the agent that tests run under ----------------------------------------------------------------------------------


def test_another_agent_is_the_program_that_nomad_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nomad-2"
    for given in (program, tmp_path):
        monkeypatch.setenv("NOMAD", str(given))
        with pytest.raises(MachineError, match=f"NOMAD={given} is no program"):
            agent._agent()
    program.touch(mode=0o755)
    monkeypatch.setenv("NOMAD", str(program))
    assert agent._agent() == program


# -- the host's programs that `boot` calls are there: on a bare machine, by what `setup` installs --------------------


INSIDE = {"runner.py"}
"""What runs in the machine that was booted."""

BUILT = {"go"}
"""What is taken from a Debian tree."""

CALLS = {"run", "Popen", "_do", "_output"}


def first_words(source: str) -> Iterator[str]:
    """Yield the program of each call whose argv is written out."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        argv = node.args[0]
        first = argv.elts[0] if isinstance(argv, ast.List | ast.Tuple) and argv.elts else argv
        if (
            name in CALLS
            and isinstance(first, ast.Constant)
            and isinstance(first.value, str)
            and " " not in first.value
        ):
            yield first.value


PROGRAMS = {
    word
    for path in Path(bootlib.__path__[0]).glob("*.py")
    if path.name not in INSIDE
    for word in first_words(path.read_text())
} - BUILT


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_program_that_boot_calls_is_installed(program: str) -> None:
    assert shutil.which(program), f"{program}: its package is missing in tests/machine/setup"


def test_programs_are_found_in_the_sources() -> None:
    assert {"ip", "mount", "git", "make", "apt-get"} <= PROGRAMS


# -- what of this machine's way to pip's index goes into a bare tree, and what does not ------------------------------


def test_variables_of_pip_proxies_and_authorities_are_carried_and_no_others() -> None:
    wanted = {
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "https_proxy": "http://proxy.example:3128",
        "NO_PROXY": "localhost",
        "SSL_CERT_FILE": "/etc/ssl/own.crt",
    }
    others = {"PIPELINE": "7", "PATH": "/bin", "PYTHONPATH": "/srv", "LD_LIBRARY_PATH": "/opt/lib"}
    assert carried.wanted_variables({**wanted, **others}) == wanted


@pytest.mark.parametrize("name", ["PIP_CACHE_DIR", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"])
def test_where_pip_writes_on_this_machine_stays_here(name: str) -> None:
    assert carried.wanted_variables({name: "/home/dev/pip"}) == {}


def test_what_the_settings_name_comes_along_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wheels", "more", "own.crt"):
        (tmp_path / name).mkdir()
    settings = tmp_path / "home/.config/pip/pip.conf"
    settings.parent.mkdir(parents=True)
    links = f"find-links = https://mirror.example file://{tmp_path}/wheels {tmp_path}/missing\n    {tmp_path}/more"
    settings.write_text(f"[global]\ntimeout = 180\n{links}\n[install]\nno-binary = %(x)s\ncert = {tmp_path}/own.crt\n")
    for name in carried.wanted_variables(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setattr(carried, "_SYSTEM_FILES", ())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert carried.carried(Path("/root")) == carried.Carried(
        variables={},
        paths=(
            (settings, Path("/root/.config/pip/pip.conf")),
            *((tmp_path / name, tmp_path / name) for name in ("wheels", "more", "own.crt")),
        ),
    )


# -- the cache of what takes long to make ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "solo5-systemd"


def test_an_entry_is_made_once_however_many_need_it_at_the_same_time() -> None:
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        (target / "file").write_text("whole")

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: cache.entry("tree", "a", make), range(4)))
    assert len(made) == 1
    assert [(path / "file").read_text() for path in found] == ["whole"]


def test_entries_of_one_name_are_made_side_by_side() -> None:
    both = threading.Barrier(2, timeout=30)

    def make(_: Path) -> None:
        both.wait()

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda key: cache.entry("tree", key, make), "ab"))
    assert [path.name for path in made] == ["tree-a", "tree-b"]


def test_what_fails_leaves_no_entry(directory: Path) -> None:
    def fail(target: Path) -> None:
        (target / "half").touch()
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        cache.entry("tree", "a", fail)
    assert list(directory.glob("*tree-a*")) == [directory / ".tree-a.lock"]


def passes(entry: Path, seconds: float) -> None:
    """Have an entry last used so much earlier."""
    used = entry.stat().st_mtime - seconds
    os.utime(entry, (used, used))


def test_what_was_used_within_the_hour_is_kept(directory: Path) -> None:
    for key in "01234":
        cache.entry("tree", key, lambda _: None)
    assert len(list(directory.glob("tree-*"))) == 5 > cache.KEPT_PER_NAME


def test_only_the_newest_are_kept_and_those_in_use(directory: Path) -> None:
    first = cache.entry("tree", "0", lambda _: None)
    with cache.in_use(first):
        for key in "1234":
            for earlier in directory.glob("tree-*"):
                passes(earlier, cache.KEPT_HOURS * 3600 + 1)
            cache.entry("tree", key, lambda _: None)
    assert sorted(path.name for path in directory.glob("tree-*")) == ["tree-0", "tree-2", "tree-3", "tree-4"]
