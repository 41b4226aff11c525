"""Jobs in HCL: submitted, watched, and purged at the end of a test."""

import json
import os
import re
import textwrap
import urllib.parse
import urllib.request
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.machine.conftest import GUESTS, PATIENCE, eventually, inspect, ok, systemctl, unit_property
from tests.machine.nomad.agent import DATA, HTTP, api, one

TASKS = ("solo5-task-*.service", "solo5-task-*.scope")
TERMINAL = ("complete", "failed", "lost")
ADDRESSES = '"--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}"'

SERVICE, SCOPE = "", 'unit = "scope"\n'
"""What a task's unit is, in its config: as it is without a word, and otherwise."""


def block(kind: str, /, *labels: str, more: str = "", **lines: object) -> str:
    """Return a block of HCL with these lines, and then further ones or other blocks."""
    head = " ".join((kind, *map(json.dumps, labels)))
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    return f"{head} {{\n{textwrap.indent(text + more, '  ').rstrip()}\n}}\n"


port_hcl = partial(block, "port")
ONE_START = block("restart", attempts=0, mode="fail")
_NOWHERE_ELSE = block("reschedule", attempts=0, unlimited=False)
NEVER_AGAIN = ONE_START + _NOWHERE_ELSE
TWO_STARTS = block("restart", attempts=1, delay="1s", interval="10m", mode="fail") + _NOWHERE_ELSE
EVERY_LINE = '\nproperties {\n  LogRateLimitBurst = "10000000"\n}'
"""In a task's config: its console has no rate that a guest could exceed."""

SLEEPER = f'unikernel = "{GUESTS}/sleeper.hvt"'
SERVER = f'unikernel = "{GUESTS}/net.hvt"\nargs = [{ADDRESSES}]'
TALKER = f'unikernel = "{GUESTS}/net.spt"\nargs = ["--verbose", {ADDRESSES}]'
COUNTER = f'unikernel = "{GUESTS}/net.spt"\nargs = ["--count=100", {ADDRESSES}]'


def guest(image: str, *words: str, more: str = "") -> str:
    """Return a task's config: a guest with these arguments, and further options."""
    return f'unikernel = "{GUESTS}/{image}"\nargs = {json.dumps(words)}\n{more}'


def network(*blocks: str, mode: str = "") -> str:
    """Return the network of a group, with these ports, or other blocks."""
    return block("network", more="".join(blocks), **({"mode": mode} if mode else {}))


ECHO = network(port_hcl("echo", static=7007, to=7))
LOGS = "max_files = 2\nmax_file_size = 5"


def hcl(
    name: str, config: str, *, kind: str = "service", job: str = "", group: str = NEVER_AGAIN, task: str = "",
    memory: int = 32, resources: str = "cpu = 20", count: int = 1, ephemeral_disk: str = "",
    logs: str = LOGS, kill_timeout: str = "2s",
) -> str:  # fmt: skip
    """Return a job of one group with one task, `guest`; each argument is the HCL of the block that it names."""
    guest = task_hcl(
        "guest", config, task=task, memory=memory, resources=resources, logs=logs, kill_timeout=kill_timeout
    )
    return group_hcl(name, guest, kind=kind, job=job, group=group, count=count, ephemeral_disk=ephemeral_disk)


def group_hcl(
    name: str, *tasks: str, kind: str = "service", job: str = "", group: str = NEVER_AGAIN, count: int = 1,
    ephemeral_disk: str = "",
) -> str:  # fmt: skip
    """Return a job of one group with these tasks."""
    return f"""
job "{name}" {{
  type = "{kind}"
{textwrap.indent(job, "  ")}
  group "group" {{
    {f"count = {count}" if count != 1 else ""}
{textwrap.indent(group, "    ")}
    ephemeral_disk {{
      size = 20
      {ephemeral_disk}
    }}
{textwrap.indent("".join(tasks), "    ")}
  }}
}}
"""


def task_hcl(
    name: str, config: str, *, driver: str = "solo5", task: str = "", memory: int = 32, resources: str = "cpu = 20",
    logs: str = LOGS, kill_timeout: str = "2s",
) -> str:  # fmt: skip
    """Return one task of a group."""
    return f"""
task "{name}" {{
  driver       = "{driver}"
  kill_timeout = "{kill_timeout}"
  logs {{
{textwrap.indent(logs, "    ")}
  }}
  config {{
{textwrap.indent(config, "    ")}
  }}
  resources {{
    memory = {memory}
{textwrap.indent(resources, "    ")}
  }}
{textwrap.indent(task, "  ")}
}}
"""


class Allocation(str):
    """The ID of an allocation, and what Nomad and this host have of it; its task is `guest` unless another is named."""

    __slots__ = ()

    def about(self) -> dict[str, Any]:
        found = api(f"/v1/allocation/{self}")
        assert isinstance(found, dict)
        return found

    def task(self, name: str = "guest") -> dict[str, Any]:
        """Return the task's state: State, Failed, Restarts, Events."""
        state = self.about()["TaskStates"][name]
        assert isinstance(state, dict)
        return state

    def events(self, name: str = "guest") -> list[str]:
        """Return the task's events as `nomad alloc status` lists them, the oldest first."""
        return [f"{event['Type']}: {event['DisplayMessage']}" for event in self.task(name)["Events"]]

    def happens(self, text: str) -> None:
        """Wait for an event that contains a text."""
        eventually(lambda: any(text in event for event in self.events()), f"an event of {self} has {text!r}")

    def status(self) -> str:
        """Return the output of `nomad alloc status`."""
        return ok("nomad", "alloc", "status", "-verbose", self)

    def refusal(self) -> str:
        """Return the output of `nomad alloc status` for a task that was not started, as one line."""
        return " ".join(self.status().split())

    def logs(self, stream: str = "stdout", name: str = "guest") -> str:
        """Return the task's log, as `nomad alloc logs` prints it; empty: there is none yet."""
        request = f"/v1/client/fs/logs/{self}?task={name}&type={stream}&origin=start&plain=true"
        try:
            with urllib.request.urlopen(f"{HTTP}{request}", timeout=30) as answer:
                text: bytes = answer.read()
        except (OSError, HTTPException):  # the agent is away, or has no log
            return ""
        return text.decode(errors="replace")

    def says(self, text: str, stream: str = "stdout", name: str = "guest") -> None:
        """Wait until the task's log contains a text; Nomad's collector writes some time after it has read."""
        eventually(lambda: text in self.logs(stream, name), f"the log of {self} contains {text!r}")

    def written(self, text: str) -> Path:
        """Wait until Nomad's file has a text of the console, which `logs` has later; return the file."""
        console = self.file("alloc/logs/guest.stdout.0")
        eventually(lambda: console.exists() and text in console.read_text(errors="replace"), f"{text!r} is written")
        return console

    def unit(self) -> str:
        """Wait until earlier units are removed, and return the systemd unit of the task."""
        return one(lambda: [name for name in units() if _alloc_of(name) == self], f"unit of {self}")

    def name(self) -> str:
        """Return the name of the task on this host."""
        return self.unit().removeprefix("solo5-task-").rpartition(".")[0]

    def nic(self) -> dict[str, Any]:
        """Return the first NIC of the guest."""
        return dict(inspect(self.name())["nics"][0])

    def port(self, label: str) -> int:
        """Return the host's port of a label, of the group or of the task's own resources."""
        allocated = self.about()["AllocatedResources"]
        own = [network for task in allocated["Tasks"].values() for network in task["Networks"] or ()]
        of_task = [p for network in own for key in ("ReservedPorts", "DynamicPorts") for p in network[key] or ()]
        return int(next(p["Value"] for p in (*(allocated["Shared"]["Ports"] or ()), *of_task) if p["Label"] == label))

    def file(self, path: str) -> Path:
        return DATA / "alloc" / self / path


class Jobs:
    """Submits jobs, and purges them at the end."""

    def __init__(self) -> None:
        self._ids: list[str] = []

    def submit(self, text: str) -> str:
        """Submit a job and return its ID, without waiting."""
        job = api("/v1/jobs/parse", "POST", {"JobHCL": text, "Canonicalize": True})
        self.expect(job["ID"])
        api("/v1/jobs", "PUT", {"Job": job})
        return str(job["ID"])

    def expect(self, job: str) -> None:
        """Purge a job at the end that was submitted otherwise."""
        if job not in self._ids:
            self._ids.append(job)

    def run(self, text: str, count: int = 1) -> list[Allocation]:
        """Submit a job, wait until so many allocations of it run, and return them."""
        job = self.submit(text)
        running(job, count)
        return [alloc["ID"] for alloc in allocations(job) if alloc["ClientStatus"] == "running"]

    def dispatch(self, job: str, meta: str = "", payload: Path | None = None) -> str:
        """Dispatch a parameterized job with ``KEY=VALUE`` or a file, and return the ID of the new job."""
        words = (*(("-meta", meta) if meta else ()), job, *((str(payload),) if payload else ()))
        output = ok("nomad", "job", "dispatch", "-detach", *words)
        [made] = re.findall(r"Dispatched Job ID += (\S+)", output)
        self.expect(made)
        return str(made)

    def purge(self) -> None:
        for job in self._ids:
            api(_path(job), "DELETE")
        for job in self._ids:
            eventually(lambda job=job: _is_stopped(job) and _all_over(job), f"all of {job} is over")  # type: ignore[misc]
            api(f"{_path(job)}?purge=true", "DELETE")
        if self._ids:
            eventually(_collected, "the agent has removed what it kept of them")
        self._ids.clear()


def _path(job: str) -> str:
    """Return a job's path in the API; the ID of a dispatched job has a slash."""
    return f"/v1/job/{urllib.parse.quote(job, safe='')}"


def _is_stopped(job: str) -> bool:
    """Return whether the server has a job as stopped, and stop it again if not.

    Seen once on a busy machine: a job that was stopped went on, and was placed anew after a drain of its node.
    """
    if all(each["Stop"] for each in api("/v1/jobs") if each["ID"] == job):
        return True
    print(f"the server has job {job} as running, though it was stopped")
    api(_path(job), "DELETE")
    return False


def _all_over(job: str) -> bool:
    return all(alloc["ClientStatus"] in TERMINAL for alloc in allocations(job))


def _collected() -> bool:
    """Return whether the agent has no directory but those of allocations that run for several tests."""
    api("/v1/client/gc", "PUT")
    running = {alloc["ID"] for alloc in api("/v1/allocations") if alloc["ClientStatus"] == "running"}
    return {path.name for path in DATA.joinpath("alloc").iterdir()} <= running


def allocations(job: str) -> list[dict[str, Any]]:
    """Return all allocations of a job, the newest first; the ID of each is an `Allocation`."""
    found = [{**each, "ID": Allocation(each["ID"])} for each in api(f"{_path(job)}/allocations")]
    return sorted(found, key=lambda alloc: alloc["CreateIndex"], reverse=True)


def deployment(job: str) -> dict[str, Any]:
    """Return the job's latest deployment; empty: there is none yet."""
    found = api(f"{_path(job)}/deployment") or {}
    assert isinstance(found, dict)
    return found


def registered(service: str) -> list[tuple[str, int]]:
    """Return the addresses and ports of a service in Nomad's own registry."""
    return [(each["Address"], each["Port"]) for each in api(f"/v1/service/{service}")]


def newest(job: str) -> Allocation:
    found: Allocation = allocations(job)[0]["ID"]
    return found


def placed(job: str) -> Allocation:
    """Wait until a job has an allocation, and return its newest."""
    eventually(lambda: allocations(job), f"{job} is placed")
    return newest(job)


def running(job: str, count: int = 1) -> Allocation:
    """Wait until so many allocations of a job run, and return the newest of them."""

    def claim() -> bool:
        states = [alloc["ClientStatus"] for alloc in allocations(job)]
        assert "failed" not in states, "\n".join(each["ID"].status() for each in allocations(job))
        return states.count("running") == count

    eventually(claim, f"{count} of {job} run", 2 * PATIENCE)
    return next((each["ID"] for each in allocations(job) if each["ClientStatus"] == "running"), Allocation())


def ended(job: str) -> Allocation:
    """Wait until a job's newest allocation has ended, and return it."""
    eventually(lambda: allocations(job) and allocations(job)[0]["ClientStatus"] in TERMINAL, f"{job} ends")
    return newest(job)


def blocked(job: str) -> bool:
    """Return whether a job is blocked, without a node that fits."""
    return any(each["Status"] == "blocked" for each in api(f"{_path(job)}/evaluations"))


def units() -> list[str]:
    """Return the units of all tasks."""
    return [line.split()[0] for line in systemctl("list-units", "--all", "--plain", "--no-legend", *TASKS).splitlines()]


def _alloc_of(name: str) -> str:
    if name.endswith(".scope"):
        return _marks(name).get("NOMAD_ALLOC_ID", "")
    fields = systemctl("show", "--property=LogExtraFields", "--value", name)
    _, _, rest = fields.partition("NOMAD_ALLOC_ID=")
    return rest[:36]


def _marks(scope: str) -> dict[str, str]:
    """Return the extended attributes of a scope's cgroup."""
    try:
        text = os.getxattr(f"/sys/fs/cgroup{unit_property(scope, 'ControlGroup')}", "user.solo5.log_fields")
    except OSError:  # it has just begun, or ended
        return {}
    fields = json.loads(text)
    assert isinstance(fields, dict)
    return fields
