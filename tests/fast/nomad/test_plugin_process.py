"""The plugin's process: its agent, its limits, and those of its children."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.interpreter import python

from solo5_systemd.nomad import scope_tenders
from solo5_systemd.nomad import start as module
from solo5_systemd.nomad.start import agent_id

SCRIPT = """
import resource, subprocess
NOFILE = resource.RLIMIT_NOFILE
resource.setrlimit(NOFILE, (64, 512))
from solo5_systemd.nomad import plugin
async def serve(handlers, **_):
    handlers[1]()  # the driver, at its first call
    from solo5_systemd.nomad import scope_tenders
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    inherited = resource.prlimit(child.pid, NOFILE)
    scope_tenders.restore_limits(child.pid)
    print([resource.getrlimit(NOFILE), inherited, resource.prlimit(child.pid, NOFILE)])
    child.communicate()
    try:
        scope_tenders.restore_limits(child.pid)
    except ProcessLookupError:
        print("ended")
plugin.service_handler, plugin.serve = lambda _, driver, __: driver, serve
plugin.main()
"""


ARENAS = """
import ctypes, threading
from solo5_systemd.nomad.plugin import use_one_arena
use_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.fclose.argtypes = [ctypes.c_void_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
together = threading.Barrier(16)
def allocate():
    together.wait()
    libc.malloc(1000)
threads = [threading.Thread(target=allocate) for _ in range(16)]
for each in threads: each.start()
for each in threads: each.join()
stream = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, stream)
libc.fclose(stream)
"""


def test_all_threads_of_the_plugin_allocate_from_one_arena() -> None:
    assert python(ARENAS).stdout.count("<heap nr=") == 1


@pytest.mark.timeout(30)
def test_the_plugins_own_limit_is_raised_and_its_childs_is_not() -> None:
    assert python(SCRIPT).stdout == "[(512, 512), (512, 512), (64, 512)]\nended\n"


def test_a_child_writes_no_core_file_and_has_no_oom_score_of_the_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a change of limits, which a process without CAP_SYS_RESOURCE could not make."""
    limits: dict[int, tuple[int, int]] = {}

    def prlimit(_pid: int, limit: int, values: tuple[int, int]) -> None:
        limits[limit] = values

    score = tmp_path / str(os.getpid()) / "oom_score_adj"
    score.parent.mkdir()
    score.write_text("-1000")
    monkeypatch.setattr(resource, "prlimit", prlimit)
    monkeypatch.setattr(scope_tenders, "PROC", tmp_path)
    scope_tenders.restore_limits(os.getpid())
    assert limits[resource.RLIMIT_CORE] == (0, 0)
    assert score.read_text() == "0"


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    agent_id.cache_clear()
    yield
    agent_id.cache_clear()


def test_an_agent_is_its_process_and_when_that_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 77)  # that of the test may be 1, which is no agent
    (tmp_path / str(os.getppid())).mkdir()
    numbers = " ".join(str(number) for number in range(4, 30))
    (tmp_path / str(os.getppid()) / "stat").write_text(f"{os.getppid()} (nomad (a) b) S {numbers}")
    monkeypatch.setattr(module, "PROC", tmp_path)
    assert agent_id() == f"{os.getppid()}.22"


def test_an_agent_that_died_before_it_was_looked_at_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROC", tmp_path)
    assert agent_id() == ""
    agent_id.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert agent_id() == ""
