"""Task drivers, called by Nomad's Go code over the plugin's socket (`driver-client bench`), all in the same way.

A start lasts until the reply to StartTask; a stop is StopTask and DestroyTask.
"""

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from tests.bench import processes
from tests.bench.driver import OURS, TASK, Driver, Plugin, driver
from tests.bench.peers.shell import BY_HAND, set_up_by_hand
from tests.bench.peers.subjects import ADDRESS, AT_ONCE, MissingError, Peer, Subject

RAW_EXEC = "/usr/local/bin/raw_exec"
NOMAD = "/usr/local/bin/nomad"
ANSWER = "/usr/local/bin/answer"
USER = "nomad-80000"
"""A dynamic user as Nomad's client names it."""

IMAGE = "localhost/answer:latest"
CONTAINERS = Path("/var/lib/containers")
QUIET = ("--log", "error")  # podman's warns of each stop that the task has ended already
ALLOCATION = {"NOMAD_ALLOC_DIR": "/alloc", "NOMAD_TASK_DIR": "/local", "NOMAD_SECRETS_DIR": "/secrets"}

UNLIMITED_PATH = "/usr/local/bin/crun-unlimited"
WITHOUT_CONTROLLERS = """\
[containers]
keyring = false
[engine]
runtime = "unlimited"
[engine.runtimes]
unlimited = ["/usr/local/bin/crun-unlimited"]
"""
UNLIMITED = """\
#!/bin/sh
for word; do
    [ "${before-}" != --bundle ] ||
        perl -0pi -e 's/"resources":(\\{(?:[^{}]|(?1))*\\})/"resources":{}/' "$word/config.json"
    before=$word
done
exec /usr/bin/crun "$@"
"""
"""Removes all limits: crun fails where a controller is missing, and has no allow_missing_controllers."""


class Wire:
    def __init__(self, subject: Driver) -> None:
        self._driver = subject

    async def start(self, until: str = "") -> float:
        return (await self._driver.do("start", count=1, until=until)).milliseconds[0]

    async def stop(self) -> float:
        return (await self._driver.do("drop")).milliseconds[0]

    async def pairs(self, count: int) -> float:
        return (await self._driver.do("pairs", count=count, at_once=AT_ONCE)).seconds

    async def grow(self, count: int) -> None:
        await self._driver.do("grow", count=count)
        await self._driver.do("watch")

    async def clear(self) -> None:
        await self._driver.do("clear", at_once=AT_ONCE)

    def harness(self) -> set[int]:
        return {self._driver.client}


def peers(directory: Path) -> list[Peer]:
    """Return the drivers.

    Args:
        directory: of the plugins that were built elsewhere.
    """

    def row(name: str, prepare: Callable[[], None], opened: Callable[[], AbstractAsyncContextManager[Subject]]) -> Peer:
        return Peer(name=name, caller="Nomad", prepare=prepare, opened=opened)

    exec2, podman = directory / "nomad-driver-exec2", directory / "nomad-driver-podman"
    return [
        row("solo5", lambda: None, _solo5),
        row("raw_exec", set_up_by_hand, _raw_exec),
        row("exec2", lambda: _need(exec2), lambda: _exec2(exec2)),
        row("podman", lambda: _prepare_podman(podman), lambda: _podman(podman)),
    ]


@asynccontextmanager
async def _solo5() -> AsyncIterator[Subject]:
    async with driver(OURS) as subject:
        yield Wire(subject)


@asynccontextmanager
async def _raw_exec() -> AsyncIterator[Subject]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = directory / "raw_exec"
        shutil.copy2(RAW_EXEC, program)
        task = _task(directory, {"command": BY_HAND, "args": ["run"]}, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        async with driver(Plugin(path=str(program), config={"enabled": True}, task=task, options=QUIET)) as subject:
            await subject.do("drop")
            # The driver executes its own program beside each task: in an agent, that is the agent's.
            program.unlink()
            program.symlink_to(NOMAD)
            yield Wire(subject)


@asynccontextmanager
async def _exec2(plugin: Path) -> AsyncIterator[Subject]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        own = directory / "guest"
        env = {
            "NOMAD_ALLOC_DIR": str(directory / "alloc"),
            "NOMAD_TASK_DIR": str(own / "local"),
            "NOMAD_SECRETS_DIR": str(own / "secrets"),
        }
        task = _task(directory, {"command": ANSWER}, env) | {"user": USER}
        options = (*QUIET, "--consoles", str(directory / "alloc" / "logs"), "--cgroups", str(_slice()))
        async with driver(Plugin(path=str(plugin), config={}, task=task, options=options)) as subject:
            yield Wire(subject)


@asynccontextmanager
async def _podman(plugin: Path) -> AsyncIterator[Subject]:
    _run("systemctl", "start", "podman.socket")
    try:
        with tempfile.TemporaryDirectory() as name:
            config = {"image": IMAGE, "command": "/answer", "args": ["7"], "ports": ["dns"]}
            port = {"label": "dns", "to": 7, "host_ip": ADDRESS}
            task = _task(Path(name), config, ALLOCATION) | {"ports": [port]}
            async with driver(Plugin(path=str(plugin), config={}, task=task, options=QUIET)) as subject:
                yield Wire(subject)
    finally:
        _run("systemctl", "stop", "podman.socket", "podman.service")


def _task(directory: Path, config: Mapping[str, object], env: Mapping[str, str]) -> dict[str, object]:
    """Return a task with one port, and make its directories as Nomad's client would."""
    for part in ("alloc/logs", "guest/local", "guest/secrets", "guest/tmp"):
        (directory / part).mkdir(parents=True)
    common = {"name": "guest", "job": "bench", "cpu": 100, "memory": TASK["memory"]}
    return common | {"alloc_dir": str(directory), "env": env, "config": config, "ports": [{"label": "dns"}]}


def _slice() -> Path:
    """Return the cgroup in which Nomad's client has those of its tasks, with all controllers that there are."""
    path = processes.CGROUP_ROOT
    for part in ("nomad.slice", "share.slice", ""):
        for controller in (path / "cgroup.controllers").read_text().split():
            (path / "cgroup.subtree_control").write_text(f"+{controller}")
        path /= part
        path.mkdir(exist_ok=True)
    return path


def _need(plugin: Path) -> None:
    if not plugin.exists():
        raise MissingError(f"{plugin} is missing")


def _prepare_podman(plugin: Path) -> None:
    _need(plugin)
    if not shutil.which("podman"):
        raise MissingError("Debian's podman is missing")
    _run("mount", "-t", "tmpfs", "containers", str(CONTAINERS))  # its overlay cannot be on another overlay
    if lacks_controllers():
        for path, text in (("/etc/containers/containers.conf", WITHOUT_CONTROLLERS), (UNLIMITED_PATH, UNLIMITED)):
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_text(text)
        Path(UNLIMITED_PATH).chmod(0o755)
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        with tarfile.open(archive.name, "w") as tar:
            tar.add(ANSWER, "answer")
        _run("podman", "import", archive.name, IMAGE)


def lacks_controllers() -> bool:
    """Return whether limits cannot be enforced, as in a container on a host with cgroup v1."""
    found = (processes.CGROUP_ROOT / "cgroup.controllers").read_text().split()
    return not {"cpu", "memory", "pids"} <= set(found)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"{' '.join(argv[:2])}: {done.stderr.strip()[-300:]}")
