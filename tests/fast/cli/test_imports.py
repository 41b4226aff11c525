"""What each verb imports: imports are most of the run time of a short verb."""

import json
from collections.abc import Sequence

import pytest
from tests.support.interpreter import python

HEAVY = {
    "asyncio", "ctypes", "dataclasses", "dbus_fast", "dbus_next", "google.protobuf", "grpc", "hashlib",
    "logging", "msgpack", "nftables", "pathlib", "pyroute2", "pystemd", "socket", "subprocess", "tomllib",
    "solo5_systemd.storage.model", "solo5_systemd.bus.connection", "solo5_systemd.cgroup.usage",
    "solo5_systemd.engine.runtime", "solo5_systemd.engine.task", "solo5_systemd.image.manifest",
    "solo5_systemd.journal.reader", "solo5_systemd.network.model", "solo5_systemd.network.overview",
    "solo5_systemd.settings.solo5_toml",
    "solo5_systemd.settings.network",
    "solo5_systemd.unit.outcome", "solo5_systemd.task.properties", "solo5_systemd.unit.state",
    "solo5_systemd.task.workload",
}  # fmt: skip
"""Modules that take a millisecond or more to import, with what they import."""

SHORT = ("ps", "inspect", "logs", "stats", "metrics")
"""Verbs that import what a task needs when there is one; others import at once what they execute."""

STATE = {"dataclasses", "pathlib", "solo5_systemd.engine.task", "solo5_systemd.unit.state"}
USAGE = STATE | {"solo5_systemd.cgroup.usage"}
OVERVIEW = {"dataclasses", "solo5_systemd.network.overview"}
LEASES = OVERVIEW | {"logging", "solo5_systemd.network.model"}

RUNNING = ["solo5-task-web.service", "text", "loaded", "active", "running", "", "/web", 0, "", "/"]

CODE = """
import json, sys
from types import SimpleNamespace
commands, rows = json.loads(sys.argv[1])

class Bus:
    def close(self): pass
    def call(self, destination, call):
        path, interface, member, body = call
        if member.startswith("List"): return rows
        values = {"LoadState": "loaded", "InvocationID": b"\\1" * 16, "ControlGroup": "/web", "LogExtraFields": []}
        return values.get(body[1], 0)

sys.modules["solo5_systemd.bus.blocking"] = SimpleNamespace(BlockingBus=Bus)  # without pystemd, and what it imports
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.main import run
from solo5_systemd.cli.terminal import standard_screen
statuses = set()
for words in commands:
    try: statuses.add(run(words, CommandContext(standard_screen(), root=False)))
    except SystemExit as left: statuses.add(left.code)
print(json.dumps([list(statuses), sorted(sys.modules)]))
"""


def modules(*commands: Sequence[str], rows: list[list[object]] | None = None) -> set[str]:
    """Return the heavy modules that commands import together, on a host with these rows of ListUnits."""
    statuses, loaded = json.loads(python(CODE, json.dumps([commands, rows or []])).stdout.splitlines()[-1])
    assert statuses == [0]
    return HEAVY & set(loaded)


def test_help_imports_nothing_heavy() -> None:
    assert modules(["--help"], *([verb, "--help"] for verb in SHORT)) == set()


@pytest.mark.parametrize(
    "words, without_tasks, with_one",
    [
        (("ps",), set(), STATE),
        (("ps", "--quiet"), set(), set()),
        (("ps", "--all", "--quiet"), set(), set()),
        (("ps", "--json"), set(), STATE | LEASES),
        (("stats", "--no-stream"), STATE, STATE),
        (("metrics",), USAGE | OVERVIEW, USAGE | OVERVIEW),
    ],
    ids=["ps", "quiet", "quiet all", "json", "stats", "metrics"],
)
def test_a_read_imports_what_it_needs_and_no_more(
    words: tuple[str, ...], without_tasks: set[str], with_one: set[str]
) -> None:
    assert modules(words) == without_tasks
    assert modules(words, rows=[RUNNING]) == with_one


def test_inspect_of_a_running_task_imports_no_event_loop() -> None:
    assert modules(["inspect", "web"], rows=[RUNNING]) == STATE | LEASES


def test_the_connection_of_a_read_imports_no_parser_of_xml() -> None:
    code = "import solo5_systemd.bus.blocking, sys; print({'lxml', 'pystemd.dbuslib', 'pystemd.base'} & {*sys.modules})"
    assert python(code).stdout == "{'pystemd.dbuslib'}\n"


START = (
    "bus.manager", "bus.network_client", "engine.runtime", "engine.start", "host.tenders", "image.store",
    "journal.console", "network.namespaces", "settings.files", "task.setting_values", "users.allocation",
)  # fmt: skip
"""The modules that import all others of a start of a task without disks."""

NOT_AT_START = {
    "shutil", "tarfile", "tomllib", "solo5_systemd.image.elf", "solo5_systemd.journal.lines",
    "solo5_systemd.network.tap_counters", "solo5_systemd.storage.backing_files", "solo5_systemd.unit.outcome",
}  # fmt: skip


def test_a_start_imports_what_it_needs_and_no_more() -> None:
    code = "from solo5_systemd.cli import context\n"
    code += "context.connect = lambda: 1 / 0\n"
    code += "async def command(engine): return 0\n"
    code += "try: context.CommandContext(None, root=True).run(command)\n"
    code += "except ZeroDivisionError: pass\n"  # with the event loop
    code += "".join(f"import solo5_systemd.{module}\n" for module in START)
    code += "import json, sys; print(json.dumps(sorted(sys.modules)))"
    assert set(json.loads(python(code).stdout)) & NOT_AT_START == set()
