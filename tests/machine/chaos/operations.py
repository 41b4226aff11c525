"""Operations, as an operator or an accident performs them."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

from tests.machine.chaos import disks, sleeping
from tests.machine.chaos.disturbances import disturb
from tests.machine.chaos.model import (
    BY_CTL,
    FIRST_PORT,
    OF_SLEEP,
    PORTS,
    UPDATES,
    Act,
    Disturbance,
    Door,
    Guest,
    Operation,
    State,
    Task,
    comes_back,
)
from tests.machine.conftest import GUESTS, PATIENCE, eventually, ok, sh, systemctl, unit_property
from tests.machine.declared import DIRECTORY, ETC
from tests.machine.nomad import jobs
from tests.machine.nomad.agent import DATA, Agent, api, plugins
from tests.machine.records import can_share_blocks, newest

IMAGES: Mapping[Guest, tuple[str, tuple[str, ...]]] = {
    Guest.COUNTS: ("net", ("--ipv4={net.service.ipv4_cidr}", "--count=20")),
    Guest.WRITES: ("ledger", ("--count=20",)),
    Guest.SERVES: ("netdisk", ("--ipv4={net.service.ipv4_cidr}", "--count=20")),
    Guest.EXITS: ("hello", ("exit=0",)),
    Guest.EXITS_7: ("hello", ("exit=7",)),
    Guest.ABORTS: ("aborter", ("how=call",)),
}
TRIES = 3


def perform(operation: Operation, agent: Agent) -> None:
    """Do it; what the operation does in the middle of an act is done by another thread."""
    if operation.task is None or operation.act is None:
        assert operation.disturbance
        disturb(operation.disturbance, agent, _ctl.kill)
        return
    accident = Thread(target=_later, args=(operation, agent))
    accident.start()
    try:
        _door(operation)(operation.act, operation.task, agent)
    finally:
        accident.join()
    if operation.disturbance is Disturbance.PREPARATION:
        systemctl("daemon-reload")  # the last one may have read some files only


def _door(operation: Operation) -> Callable[[Act, Task, Agent], None]:
    assert operation.act
    assert operation.task
    if operation.act in OF_SLEEP:
        return _sleep
    return _ON_DISKS[operation.act] if operation.act in BY_CTL else _DOORS[operation.task.door]


def _sleep(act: Act, task: Task, agent: Agent) -> None:
    sleeping.perform(act, task, unit_of(task), _ctl, _is_sentence)


def unit_of(task: Task) -> str:
    """The unit of a task that has been started."""
    if task.door is Door.NOMAD:
        return allocation(task).unit()
    return f"{task.name}.service" if task.door is Door.FILE else f"solo5-task-{task.name}.service"


def _later(operation: Operation, agent: Agent) -> None:
    if operation.disturbance:
        time.sleep(operation.delay)
        disturb(operation.disturbance, agent, _ctl.kill)


class Client:
    """The `solo5ctl` of an act, which another thread may kill."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(("solo5ctl", *words), text=True, errors="replace", **pipes) as process:  # type: ignore[call-overload]
            self._process = process
            out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()  # nothing where it has ended


_ctl = Client()

KILLED = -signal.SIGKILL

# --- solo5ctl ---------------------------------------------------------------------------------------------------------


def _by_ctl(act: Act, task: Task, agent: Agent) -> None:
    if act is Act.SLAY:
        _slay(unit_of(task))
        return
    said = ""
    for _ in range(TRIES):
        done = _ctl(*_command(act, task))
        said = done.stderr
        if done.returncode == 0 or (act is Act.REMOVE and "no task is named" in said):
            return
        assert _is_sentence(done), f"{act} {task.name}: one sentence was expected: {said}"
        if act is Act.START:
            sh("solo5ctl", "rm", "--force", task.name)
    raise AssertionError(f"{act} {task.name}: {said}")


def _is_sentence(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == KILLED or done.stderr.startswith("solo5ctl: ")


def _command(act: Act, task: Task) -> tuple[str, ...]:
    image, arguments = IMAGES[task.guest]
    ports = ("-p", f"{task.port}:7", "-p", f"{task.port}:7/udp") if task.has_nic else ()
    blocks = disks.by_ctl(task)
    words: Mapping[Act, tuple[str, ...]] = {
        Act.START: ("run", "-d", "--name", task.name, *ports, *blocks, f"{GUESTS}/{image}.{task.tender}", *arguments),
        Act.STOP: ("stop", task.name),
        Act.TERMINATE: ("kill", "--signal", "TERM", task.name),
        Act.KILL: ("kill", "--signal", "KILL", task.name),
        Act.FREEZE: ("freeze", task.name),
        Act.THAW: ("thaw", task.name),
        Act.REMOVE: ("rm", "--force", task.name),
    }
    return words[act]


def _slay(unit: str) -> None:
    pid = int(unit_property(unit, "MainPID"))
    assert pid, f"{unit} has no process"  # kill(2) of 0 is our own end
    os.kill(pid, signal.SIGKILL)


# --- disks ------------------------------------------------------------------------------------------------------------

SNAPSHOT = "at"
_NO_REFLINKS = "shares no blocks: expected one with reflinks"


def _snapshot(act: Act, task: Task, agent: Agent) -> None:
    """Take a snapshot while the task runs or is frozen: it has what was written before, and nothing of later."""
    disk = disks.PLACE / task.disk_name
    before, said = newest(disk), ""
    for _ in range(TRIES):
        done = _ctl("disk", "snapshot", task.disk_name, f"--as={SNAPSHOT}")
        said = done.stderr
        if not can_share_blocks() and _NO_REFLINKS in said:
            return
        # One that was killed may have made it.
        if done.returncode == 0 or f"has a snapshot '{SNAPSHOT}' already" in said:
            break
        assert _is_sentence(done), f"{act} {task.name}: one sentence was expected: {said}"
    else:
        raise AssertionError(f"{act} {task.name}: {said}")
    taken = newest(disks.PLACE / ".snapshots" / task.disk_name / SNAPSHOT)
    assert before <= taken <= newest(disk), f"{task.disk_name}: records {before} before, {taken} in the snapshot"
    ok("solo5ctl", "disk", "rm", f"{task.disk_name}@{SNAPSHOT}")


def _intrude(act: Act, task: Task, agent: Agent) -> None:
    """Start another task with its disk, which is refused."""
    second = replace(task, number=task.number + INTRUDERS, door=Door.CTL)
    said = ""
    for _ in range(TRIES):
        done = _ctl(*_command(Act.START, second))
        said = done.stderr
        if "is in use by another task" in said:
            return
        assert done.returncode, f"{task.disk_name} has two writers: {task.name} and {second.name}"
        assert _is_sentence(done), f"{act} {task.name}: one sentence was expected: {said}"
    raise AssertionError(f"{act} {task.name}: {said}")


INTRUDERS = 100_000 + PORTS // 2
"""Above the number of a task: that of one which starts with its disk, and at a port of its own."""

_ON_DISKS: Mapping[Act, Callable[[Act, Task, Agent], None]] = {Act.SNAPSHOT: _snapshot, Act.INTRUDE: _intrude}

# --- declarations -----------------------------------------------------------------------------------------------------


def _by_file(act: Act, task: Task, agent: Agent) -> None:
    """Do what an operator does with a file and systemctl; again where it fails."""
    if act in (*UPDATES, Act.REFUSED, Act.STOPPED):
        _update(act, task)
        return
    if not comes_back(task, act):
        _act_on_file(act, task, agent)
    else:
        unit = unit_of(task)
        before = _run(unit)
        _act_on_file(act, task, agent)
        eventually(lambda: _run(unit) != before, f"systemd has begun another run of {unit}")
    if task.removed and act in (Act.STOP, Act.TERMINATE, Act.KILL, Act.SLAY):
        unit = f"{task.name}.service"
        eventually(lambda: unit_property(unit, "ActiveState") in ("inactive", "failed"), f"{unit} ends")
        sh("systemctl", "reset-failed", unit)  # systemd has a failed unit listed until then


def _run(unit: str) -> str:
    return unit_property(unit, "InvocationID")


def _act_on_file(act: Act, task: Task, agent: Agent) -> None:
    if act in (Act.TERMINATE, Act.KILL, Act.FREEZE, Act.THAW) or (act is Act.STOP and not _by_systemctl(task)):
        _by_ctl(act, task, agent)
        return
    if act is Act.SLAY:
        _slay(unit_of(task))
        return
    path = ETC / f"{task.template if task.instance else task.name}.unikernel"
    if act in (Act.START, Act.EDIT):
        path.write_text(_declaration(task, task.written + (act is Act.EDIT)))
        path.chmod(0o644)
    if act is Act.WITHDRAW:
        path.unlink()
        _forget_image(task)
    said = ""
    for _ in range(TRIES):
        done = [each for words in _commands(act, task) if (each := sh("systemctl", *words)).returncode]
        if not done:
            break
        said = "".join(each.stderr for each in done)
        systemctl("show", "--property=Version")  # PID 1 may be executing itself anew
    else:
        raise AssertionError(f"{act} {task.name}: {said}")
    if act is Act.WITHDRAW and task.state is State.DORMANT:
        eventually(lambda: not sleeping.lease(task.name), f"{task.name} waits no longer")
        sh("systemctl", "reset-failed", f"{task.name}.service")
        sh("solo5ctl", "gc")  # its outcome
    if act is Act.REMOVE:
        _forget_image(task)
        if task.instance:
            systemctl("daemon-reload")  # its unit file is that of its template again, and not kept
        _forget_outcome(task)
        # Its own directory may be there for a moment: its preparation clears up.
        if not task.instance or not [each for each in DIRECTORY.glob(f"{task.template}?*") if each.name != task.name]:
            path.unlink()
        systemctl("daemon-reload")


def _forget_image(task: Task) -> None:
    """Remove what updates have written."""
    shutil.rmtree(ETC / f"{task.name}.unikernel.d", ignore_errors=True)


def _forget_outcome(task: Task) -> None:
    """`solo5ctl rm`, again where it fails."""
    said = ""
    for _ in range(TRIES):
        done = _ctl("rm", task.name)
        said = done.stderr
        if done.returncode == 0 or "no task is named" in said:
            return
    raise AssertionError(f"rm {task.name}: {said}")


def _by_systemctl(task: Task) -> bool:
    """Whether it is stopped by systemctl, which stops no frozen unit."""
    return task.number % 2 == 0 and task.state is not State.FROZEN


def _commands(act: Act, task: Task) -> Sequence[tuple[str, ...]]:
    unit = f"{task.name}.service"
    start = ("enable", "--now", unit) if task.enabled else ("start", unit)
    commands: Mapping[Act, Sequence[tuple[str, ...]]] = {
        Act.START: (("daemon-reload",), start),
        Act.AGAIN: (("start", unit),),
        Act.RESTART: (("restart", unit),),
        Act.STOP: (("stop", unit),),
        Act.EDIT: (),
        Act.WITHDRAW: (("disable", unit), ("daemon-reload",)),
        Act.REMOVE: (("disable", "--now", unit),),
    }
    return commands[act]


def _declaration(task: Task, edition: int) -> str:
    image, arguments = IMAGES[task.guest]
    port = f"{FIRST_PORT // PORTS}%i" if task.instance else f"{task.port_of(edition)}"
    lines = [f"Image={GUESTS}/{image}.{task.tender}", *(f"Argument={word}" for word in arguments)]
    lines += [f"Publish={port}:7", f"Publish={port}:7/udp"] if task.guest is Guest.COUNTS else []
    text = "[Unit]\nStartLimitIntervalSec=0\n[Unikernel]\nWatch=0\nDrain=1s\n" + "".join(f"{line}\n" for line in lines)
    text += "IdleSec=1h\nIdleAction=stop\n" if task.waits else ""
    text += disks.by_file(task.disk_name) if task.disk is not None else ""
    restart = "[Service]\nRestart=on-failure\nRestartSec=100ms\n" if task.restarts else ""
    return f"# {edition}\n{text}{restart}[Install]\nWantedBy=multi-user.target\n"


# --- updates ----------------------------------------------------------------------------------------------------------

IMAGES_OF_UPDATES = Path("/srv/chaos/images")
_PHASES = ("beside", "switching", "draining")


def images(task: Task) -> tuple[str, ...]:
    """The images of which it may run one."""
    return tuple(map(_paths(task).__getitem__, (0, 1) if task.image is None else (task.image,)))


def _paths(task: Task) -> tuple[str, str]:
    """The image of its file, and the other one, with the same guest."""
    image, _ = IMAGES[task.guest]
    other = IMAGES_OF_UPDATES / f"{image}.{task.tender}"
    if task.goes_on and not other.exists():
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes((GUESTS / other.name).read_bytes() + b"\0other")
    return f"{GUESTS}/{other.name}", f"{other}"


def _update(act: Act, task: Task) -> None:
    """Update, again where it was disturbed; each attempt is over, and says so in one sentence, before the next."""
    said = ""
    for _ in range(TRIES):
        done = _attempt(act, task)
        said = done.stderr
        eventually(lambda: _is_over(task), f"the update of {task.name} is over")
        if _has_ended(act, task, done):
            return
        systemctl("show", "--property=Version")
    raise AssertionError(f"{act} {task.name}: {said}")


def _attempt(act: Act, task: Task) -> subprocess.CompletedProcess[str]:
    if act is Act.RENEW:
        return sh("systemctl", "reload", f"{task.name}.service")
    image = _paths(task)[task.other_image]
    pause = () if task.guest is Guest.COUNTS else ("--pause",)
    words: Mapping[Act, tuple[str, ...]] = {
        Act.UPDATE: ("update", task.name, image),
        Act.ROLLBACK: ("rollback", task.name),
        Act.UNREADY: ("update", task.name, image, "--ready", "console:^never$", "--timeout", "1s"),
        Act.REFUSED: ("update", task.name, f"{GUESTS}/hello.{task.tender}"),
        Act.STOPPED: ("update", task.name, image, "--no-block"),
    }
    done = _ctl(*words[act], *pause, "--watch", "0", "--drain", "1s")
    if act is Act.STOPPED:
        late = ("switching",) if pause else _PHASES[(task.number + task.runs) % 3 :]
        eventually(lambda: _phase(task) in late or _is_over(task), f"the update of {task.name} has begun")
        systemctl("stop", f"{task.name}.service")
    return done


def _has_ended(act: Act, task: Task, done: subprocess.CompletedProcess[str]) -> bool:
    """Whether it has the end that it must have; otherwise it was disturbed."""
    match act:
        case Act.UNREADY:
            assert done.returncode, f"{act} {task.name} has succeeded"
            return "was not ready within 1 s" in done.stderr
        case Act.REFUSED:
            assert done.returncode, f"{act} {task.name} has succeeded"
            return "has the devices" in done.stderr or "the image has no NIC" in done.stderr
        case Act.STOPPED:
            return unit_property(f"{task.name}.service", "ActiveState") in ("inactive", "failed")
        case Act.UPDATE | Act.ROLLBACK:
            # One that was killed may have been completed: a second rollback would go the other way.
            return done.returncode == 0 or _image(task) == _paths(task)[task.other_image]
        case _:
            return done.returncode == 0


def _image(task: Task) -> str:
    """The image that it runs, once that can be read."""
    seen: list[str] = []

    def read() -> bool:
        found = sh("solo5ctl", "inspect", "--json", task.name)
        seen.extend(str(each["image"]) for each in json.loads(found.stdout or "[]"))
        return bool(seen)

    eventually(read, f"{task.name} can be inspected")
    return seen[-1]


def _phase(task: Task) -> str:
    with suppress(OSError):
        return (DIRECTORY / task.name / "update.phase").read_text()
    return ""


def _is_over(task: Task) -> bool:
    return unit_property(f"solo5-update@{task.name}.service", "ActiveState") in ("inactive", "failed")


# --- Nomad ------------------------------------------------------------------------------------------------------------

_SIGNALS = {Act.TERMINATE: "SIGTERM", Act.KILL: "SIGKILL", Act.FREEZE: "SIGSTOP", Act.THAW: "SIGCONT"}


def _by_nomad(act: Act, task: Task, agent: Agent) -> None:
    if act in _SIGNALS:
        _signal(task, _SIGNALS[act])
        return
    if act is Act.START:
        eventually(lambda: plugins() and agent.driver().get("Healthy"), "the driver is healthy")
    {Act.START: _submit, Act.STOP: _stop, Act.SLAY: _slay_of_nomad, Act.REMOVE: _purge}[act](task)


def _signal(task: Task, signal_name: str) -> None:
    """Send a signal; again where the plugin is just being launched, unless the first one has ended the task."""
    alloc = allocation(task)

    def sent() -> bool:
        with suppress(AssertionError):
            api(f"/v1/client/allocation/{alloc}/signal", "PUT", {"Signal": signal_name, "Task": "guest"})
            return True
        return alloc.about()["ClientStatus"] in jobs.TERMINAL

    eventually(sent, f"{signal_name} reaches {task.name}")


def _submit(task: Task) -> None:
    image, arguments = IMAGES[task.guest]
    words = ", ".join(f'"{word}"' for word in arguments)
    config = f'unikernel = "{GUESTS}/{image}.{task.tender}"\nargs = [{words}]'
    port = f'network {{\n  port "echo" {{\n    static = {task.port}\n    to = 7\n  }}\n}}\n'
    group = jobs.NEVER_AGAIN + (port if task.has_nic else "")
    blocks, template = disks.by_nomad(task)
    text = jobs.hcl(task.name, config + blocks, kind="batch", group=group, task=template, resources="cpu = 1")
    job = api("/v1/jobs/parse", "POST", {"JobHCL": text, "Canonicalize": True})
    api("/v1/jobs", "PUT", {"Job": job})
    eventually(lambda: started(task), f"{task.name} is started")


def started(task: Task) -> bool:
    """Nomad has let it run, or it is over already."""
    return any(alloc["ClientStatus"] != "pending" for alloc in jobs.allocations(task.name))


def allocation(task: Task) -> jobs.Allocation:
    """The one allocation of a job that is to run once."""
    [alloc] = (each["ID"] for each in jobs.allocations(task.name))
    assert isinstance(alloc, jobs.Allocation)
    return alloc


def _stop(task: Task) -> None:
    api(f"/v1/job/{task.name}", "DELETE")


def _slay_of_nomad(task: Task) -> None:
    _slay(unit_of(task))


def _purge(task: Task) -> None:
    """Forget the job, and have the client forget its allocation."""
    alloc = allocation(task)
    api(f"/v1/job/{task.name}?purge=true", "DELETE")
    directory = DATA / "alloc" / alloc

    def collected() -> bool:
        with suppress(AssertionError):  # the client knows it no more
            api(f"/v1/client/allocation/{alloc}/gc")
        with suppress(FileNotFoundError):  # the client is removing it
            _unmount_what_was_busy(directory)
        return not directory.exists()

    eventually(collected, f"the client forgets allocation {alloc} of {task.name}")


def _unmount_what_was_busy(directory: Path) -> None:
    """Remove a directory of which Nomad has left the mount points alone: it unmounts them once (umount(2), EBUSY).

    A mount is busy while a copy of it is in use in another namespace, such as that in which PID 1 executes generators.
    """
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if f" {directory}/" in line]
    if points and not any(path.is_file() for path in directory.rglob("*")):
        sh("umount", *points)
        shutil.rmtree(directory, ignore_errors=True)


_DOORS: Mapping[Door, Callable[[Act, Task, Agent], None]] = {
    Door.CTL: _by_ctl,
    Door.NOMAD: _by_nomad,
    Door.FILE: _by_file,
}
