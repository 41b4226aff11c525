"""What must be true of the machine, whatever has happened: everything that a world holds is there, and nothing else."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.machine.chaos import disks
from tests.machine.chaos.lines import broken, faults, last_run, numbers
from tests.machine.chaos.model import FIRST_PORT, PORTS, PREFIX, Door, End, State, Task, World
from tests.machine.chaos.operations import allocation, images
from tests.machine.chaos.sleeping import FIFOS, LEASES, echoes, is_dormant, lease
from tests.machine.conftest import ok, sh, sync_journal, systemctl, unit_property
from tests.machine.nomad import jobs
from tests.machine.nomad.agent import DATA, plugins

from solo5_systemd.base.names import TaskName, user_of

CONSOLES = Path("/run/solo5/relay")
IMAGES = Path("/var/lib/solo5/images")
_USER = "solo5-([0-9a-f]{16}|[0-9a-f]{12}-[0-9]{3})"
UNIT_FILES = Path("/run/systemd/system")
ENABLED = Path("/etc/systemd/system/multi-user.target.wants")
MOST_DESCRIPTORS = 120
"""Of any process of ours, with a handful of tasks; one that leaks goes beyond it in a long run."""


class Truth:
    """The machine beside a world; what was found true for ever is not looked at again."""

    def __init__(self) -> None:
        self._since = f"--since=@{time.time():.6f}"  # a unit's name may have been another history's before
        self._names: dict[str, str] = {}
        self._over: set[tuple[str, int]] = set()
        self._identities: dict[str, object] = {}
        self._last: dict[str, int] = {}
        self._invocations: dict[tuple[str, int], str] = {}
        self._written = disks.Written()

    def complaints(self, world: World) -> list[str]:
        """What is not as it must be; each a sentence."""
        for task in world.values():
            if task.name not in self._names and (name := _name(task)):
                self._names[task.name] = name
        return [*self._left(world), *self._tasks(world), *_descriptors()]

    def _left(self, world: World) -> Iterator[str]:
        """Everything that a running task has, and nothing more of it."""
        alive = [task for task in world.values() if task.has_process]
        connected = {self._names.get(task.name, "?") for task in world.values() if task.has_network}
        ports = {task.port for task in world.values() if task.has_network}
        units = _units("service")
        nomads = {self._names.get(task.name, "?") for task in alive if task.door is Door.NOMAD}
        yield from _differ("running units", _of(units, "running"), self._all(alive))
        yield from _differ("leases", {file.stem for file in LEASES.glob("*.json")}, connected)
        yield from _differ("relayed consoles", {file.stem for file in CONSOLES.glob("*.json")}, nomads)
        yield from _differ("published ports", _published(), ports)
        yield from _differ("taps", _taps(), sum(task.has_network for task in alive))
        yield from _differ("tenders", len(sh("pgrep", "solo5-(hvt|spt)").stdout.split()), len(alive))
        writers = {self._names.get(task.name, "?"): task.disk_name for task in alive if task.disk is not None}
        declared = [task for task in alive if task.door is Door.FILE]
        writing = sum(task.disk is not None for task in declared)
        locks = {self._names.get(task.name, "?"): task.locks for task in alive if task.locks}
        yield from disks.left(writers, locks, {task.disk_name for task in world.values()}, writing)
        yield from _left_of_files(world, {task.name for task in declared})
        yield from _waiting({task.name for task in world.values() if task.waits and not (task.end or task.removed)})
        # Nomad has the driver forget a task as soon as it has ended
        known = self._all([task for task in world.values() if task in alive or task.door is not Door.NOMAD])
        for unit in _of(units, "") - known:
            yield f"unit {unit} is nobody's"
        for path in Path("/run/netns").glob("solo5-*"):
            if path.name.removeprefix("solo5-") not in known:
                yield f"{path} is nobody's"
        for file in Path("/run/systemd/transient").glob("solo5-task-*.service"):
            if file.stem.removeprefix("solo5-task-") not in known:
                yield f"{file} is nobody's"
        for file in IMAGES.iterdir():
            if not re.fullmatch(r"[0-9a-f]{64}", file.name) and file.name.startswith("."):
                yield f"{file} is half an image"

    def _all(self, tasks: list[Task]) -> set[str]:
        return {self._names.get(task.name, f"? ({task.name})") for task in tasks}

    def _tasks(self, world: World) -> Iterator[str]:
        for task in world.values():
            if (task.name, task.runs) in self._over:
                continue
            found = [*self._of_nomad(task)] if task.door is Door.NOMAD else [*self._of_ctl(task)]
            yield from (f"{task.name}: {complaint}" for complaint in found)
            if task.end and not found:
                self._over.add((task.name, task.runs))

    def _of_ctl(self, task: Task) -> Iterator[str]:
        yield from self._answers(task)
        yield from self._sleeps(task)
        if task.end is None and task.disk is None and task.door is Door.CTL:
            return
        found = sh("solo5ctl", "inspect", "--json", task.name)
        if found.returncode:
            yield f"it cannot be inspected: {found.stderr}"
            return
        seen = json.loads(found.stdout)[0]
        log = last_run(self._entries(task), seen["invocation_id"])
        yield from self._disks(task, log)
        if task.state is State.DORMANT:
            yield from self._dormant(task, seen)
            yield from _uncounted(task, log)
            return
        if task.waits and task.state is State.RUNNING:
            run = self._invocations.setdefault((task.name, task.runs), seen["invocation_id"])
            yield from _differ("its run", seen["invocation_id"], run)
        if task.door is Door.FILE and task.end is None:
            if (image := seen["image"]) not in images(task):
                yield f"its image is {image}, expected {images(task)}"
            had = self._identities.setdefault(task.name, seen["nics"])
            yield from _differ("its addresses", seen["nics"], had)
        if task.end is None:
            return
        if (seen.get("outcome") or {}).get("ending") not in task.end.endings:
            yield f"its outcome is {seen.get('outcome')}, expected {task.end}: {seen}"
        yield from _uncounted(task, log)

    def _of_nomad(self, task: Task) -> Iterator[str]:
        yield from self._answers(task)
        yield from self._sleeps(task)
        allocs = jobs.allocations(task.name)
        if len(allocs) != 1:
            yield f"it has {len(allocs)} allocations, and one run"
            return
        log = _log(allocs[0]["ID"])
        yield from self._disks(task, log)
        if task.end is None:
            if allocs[0]["ClientStatus"] != "running":
                yield f"Nomad says that it is {allocs[0]['ClientStatus']}: {allocs[0]['ID'].events()}"
            yield from self._goes_on(task, log)
            return
        yield from _nomads_end(allocs[0], task.end)
        if log != (written := "".join(f"{line}\n" for _, line in self._entries(task))):
            yield f"Nomad's log is {log!r}, and it wrote {written!r}"
        yield from _uncounted(task, log)

    def _disks(self, task: Task, log: str) -> Iterator[str]:
        if task.disk is not None:
            yield from self._written.complaints(f"{task.name} {task.runs}", task.disk_name, log)

    def _answers(self, task: Task) -> Iterator[str]:
        unit = self._unit(task)
        alive = unit_property(unit, "ActiveState") == "active"  # what died frozen is so for ever, says systemd
        frozen = alive and unit_property(unit, "FreezerState") == "frozen"
        if frozen != (task.state is State.FROZEN):
            yield f"frozen: {frozen}, expected {task.state}"
        if task.state is State.RUNNING and task.has_nic and not echoes(task.port):
            yield f"its port {task.port} does not answer"

    def _sleeps(self, task: Task) -> Iterator[str]:
        """Whether a task with a NIC is asleep, and nothing has woken it: no daemon, and nothing that only looks."""
        if not task.has_process or not task.has_nic:
            return
        name, asleep = self._names.get(task.name, "?"), task.state is State.ASLEEP
        yield from _differ("it is recorded as asleep", bool(lease(name).get("asleep")), asleep or task.sleeps)
        if not asleep:
            return
        shown = sh("solo5ctl", "inspect", "--json", name).stdout
        if not shown or "asleep_since" not in json.loads(shown)[0]:
            yield f"it is not shown as asleep: {shown}"
        unit = self._unit(task)
        yield from _differ("its unit", unit_property(unit, "ActiveState"), "active")
        with suppress(FileNotFoundError):
            state = Path(f"/proc/{unit_property(unit, 'MainPID')}/stat").read_text().rpartition(")")[2].split()[0]
            yield from _differ("the state of its tender", state, "T")

    def _dormant(self, task: Task, seen: dict[str, Any]) -> Iterator[str]:
        """It has no process and no cgroup, and all that a packet needs to start it."""
        unit = self._unit(task)
        if not is_dormant(unit):
            yield f"it is not dormant: {unit_property(unit, 'ActiveState')}, {lease(task.name).get('state')}"
        for key in ("MainPID", "ControlGroup"):
            yield from _differ(f"its {key}", unit_property(unit, key).strip("0"), "")
        yield from _differ("its phase", seen["phase"], "dormant")
        had = self._identities.setdefault(task.name, seen["nics"])
        yield from _differ("its addresses", seen["nics"], had)
        if task.last and (seen.get("outcome") or {}).get("ending") not in task.last.endings:
            yield f"its outcome is {seen.get('outcome')}, expected {task.last}"

    def _unit(self, task: Task) -> str:
        name = self._names.get(task.name)
        return f"{name}.service" if task.door is Door.FILE else f"solo5-task-{name}.service"

    def _goes_on(self, task: Task, log: str) -> Iterator[str]:
        """Every line once, and more of them than the last time."""
        yield from _uncounted(task, log)
        lines = len(numbers(log))
        if task.state is State.RUNNING and lines <= self._last.get(task.name, 0):
            yield f"its log stands still at line {lines}"
        else:
            self._last[task.name] = lines

    def _entries(self, task: Task) -> list[tuple[str, str]]:
        """Invocation ID, empty where journald did not know it, and text of each line that its units wrote."""
        unit = self._unit(task)
        sync_journal()
        matches = ("SYSLOG_FACILITY=21", "_TRANSPORT=stdout", "PRIORITY=6", f"_SYSTEMD_UNIT={unit}")
        fields = ("--output=json", "--output-fields=MESSAGE,_SYSTEMD_INVOCATION_ID", "--all")
        read = ok("journalctl", "--quiet", *fields, self._since, *matches).splitlines()
        return [(entry.get("_SYSTEMD_INVOCATION_ID", ""), str(entry["MESSAGE"])) for entry in map(json.loads, read)]


def _name(task: Task) -> str:
    """What the task is called on this machine; empty where it cannot be known yet."""
    if task.door is not Door.NOMAD:
        return task.name
    fields = ("--output=json", "--output-fields=_SYSTEMD_UNIT", "--lines=1")
    with suppress(AssertionError, ValueError):
        line = ok("journalctl", "--quiet", *fields, f"NOMAD_ALLOC_ID={allocation(task)}", "_TRANSPORT=stdout")
        unit = json.loads(line)["_SYSTEMD_UNIT"]
        return str(unit.removeprefix("solo5-task-").removesuffix(".service"))
    return ""


def _differ(what: str, is_: object, must_be: object) -> Iterator[str]:
    if is_ != must_be:
        yield f"{what}: {is_}, expected {must_be}"


def _units(kind: str) -> list[list[str]]:
    """Name, load, active and sub-state of all units of tasks."""
    patterns = (f"solo5-task-*.{kind}", f"{PREFIX}*.{kind}")
    listed = systemctl("list-units", "--all", "--plain", "--no-legend", *patterns)
    return [line.split() for line in listed.splitlines()]


def _waiting(names: set[str]) -> Iterator[str]:
    """The tasks that run and will be dormant, or are it: their socket units, and nothing more of it."""
    units = {unit[0].removesuffix(".socket"): unit[2] for unit in _units("socket") if unit[2] != "inactive"}
    yield from _differ("socket units", units, dict.fromkeys(names, "active"))
    yield from _differ("FIFOs", {path.name for path in FIFOS.glob("*")}, names)


def _of(units: list[list[str]], state: str) -> set[str]:
    """The tasks of units, in one sub-state or any."""
    return {unit[0].removeprefix("solo5-task-").removesuffix(".service") for unit in units if state in ("", unit[3])}


def _left_of_files(world: World, alive: set[str]) -> Iterator[str]:
    """What declared tasks have, and nothing more: unit files, what PID 1 prepares, mounts, users."""
    declared = [task for task in world.values() if task.door is Door.FILE]
    there = {task.template if task.instance else task.name for task in declared}
    instances = {task.name for task in declared if task.instance}
    enabled = {task.name for task in world.values() if task.enabled}
    yield from _differ("directories of declarations", _names("/run/solo5/declared"), there | instances)
    plain, templates = there - (of_templates := {task.template for task in declared if task.instance}), of_templates
    for pattern, expected in (
        (f"{PREFIX}*", there),
        (f"solo5-prepare@{PREFIX}*", plain),
        (f"solo5-awaited-{PREFIX}*", templates),
    ):
        # An instance that was updated has unit files of its own.
        yield from _differ(f"unit files {pattern}", _names(UNIT_FILES, pattern) - instances, expected)
    waits = {task.name for task in declared if task.waits and not task.removed}
    yield from _differ("unit files of sockets", _names(UNIT_FILES, f"{PREFIX}*.socket"), waits)
    yield from _of_updates()
    yield from _differ("enabled", _names(ENABLED, f"{PREFIX}*"), enabled)
    listed = systemctl("list-units", "--plain", "--no-legend", f"solo5-prepare@{PREFIX}*").splitlines()
    yield from _differ("preparations", {_name_of(line.split()[0]) for line in listed}, alive)
    points = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
    mounted = {Path(point).parent.name for point in points if point.startswith("/run/solo5/declared/")}
    yield from _differ("mounts of declared tasks", mounted, alive)
    users = {path.stem for path in Path("/run/userdb").glob("*.user") if re.fullmatch(_USER, path.stem)}
    yield from _differ("user records", users, {user_of(TaskName(name)) for name in alive})


def _names(directory: Path | str, pattern: str = "*") -> set[str]:
    return {_name_of(path.name) for path in Path(directory).glob(pattern)}


def _name_of(unit: str) -> str:
    """The task of a unit, of its file or of a directory of drop-ins."""
    name = re.sub(r"\.(service|target|socket)(\.d)?$", "", unit)
    return re.sub(r"^solo5-(prepare@|outcome@|awaited-)", "", name)


def _of_updates() -> Iterator[str]:
    """What an update has only as long as it is under way."""
    for pattern in ("update.json", "update.phase", "update.previous"):
        yield from (f"{path} is of no update" for path in Path("/run/solo5/declared").glob(f"*/{pattern}"))
    for unit in systemctl("list-units", "--plain", "--no-legend", "solo5-update@*").splitlines():
        yield f"unit {unit.split()[0]} is nobody's"


def _published() -> set[int]:
    numbers = re.findall(r"\b\d{5}\b", ok("nft", "list", "ruleset"))
    return {int(number) for number in numbers if FIRST_PORT <= int(number) < FIRST_PORT + 2 * PORTS}


def _taps() -> int:
    links = json.loads(ok("ip", "-json", "-details", "link"))
    return sum(link.get("linkinfo", {}).get("info_kind") in ("macvlan", "tun") for link in links)


def _log(alloc: str) -> str:
    with suppress(FileNotFoundError):
        return (DATA / "alloc" / alloc / "alloc/logs/guest.stdout.0").read_text()
    return ""


def _uncounted(task: Task, log: str) -> Iterator[str]:
    """Each line once, whole and in order; the last one too, of a guest that has ended by itself."""
    yield from faults(log)
    if torn := broken(log):
        yield f"lines that it did not write: {torn}"
    if task.end and "solo5_exit" not in log and "solo5_abort" not in log and not task.goes_on:
        yield f"its last line is missing: {log!r}"


def _nomads_end(alloc: dict[str, Any], end: End) -> Iterator[str]:
    """Nomad has the right end of it, once, or as often as it may be repeated."""
    if alloc["ClientStatus"] not in end.statuses:
        said = f"{alloc['ClientStatus']}: {alloc['ID'].events()}"
        yield f"Nomad says that it is {said}, expected {set(end.statuses)}"
    events = (alloc["TaskStates"] or {}).get("guest", {}).get("Events") or []
    details = [event["Details"] for event in events if event["Type"] == "Terminated"]
    ends = [(int(detail["exit_code"]), int(detail["signal"])) for detail in details]
    if not 1 <= len(ends) <= 1 + end.repeats or len(set(ends)) != 1:
        yield f"Nomad has {len(ends)} ends of it, with exit code and signal {ends}, expected {1 + end.repeats} at most"
    elif end.exit_code is not None and ends[0] != (end.exit_code, end.signal):
        yield f"Nomad has exit code and signal {ends[0]}, expected {(end.exit_code, end.signal)}"


def _descriptors() -> Iterator[str]:
    services = (int(unit_property(f"solo5-{name}.service", "MainPID")) for name in ("relay", "networkd"))
    for pid in (*plugins(), *filter(None, services)):
        with suppress(FileNotFoundError):  # it has just ended
            count = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            if count > MOST_DESCRIPTORS:
                yield f"process {pid} has {count} descriptors open"
