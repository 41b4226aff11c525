"""Budgets of imported modules: most of the run time of a short verb, and memory for as long as a service runs."""

import pytest
from tests.support.interpreter import python

NEVER = {"lxml", "pdb", "pystemd"}
"""Modules of which only the connection of a read needs any: pystemd with its parser of XML, and debuggers."""

BLOCKING = "import solo5_systemd.bus.blocking"

COUNTED = """
import sys
before = set(sys.modules)
words = sys.argv[1:]
{code}
print(*sorted(set(sys.modules) - before), file=sys.stderr)
"""

VERB = """
rows = [["solo5-task-web.service", "text", "loaded", "active", "running", "", "/web", 0, "", "/"]] * int(words.pop())

class Bus:
    def close(self): pass
    def call(self, destination, call):
        path, interface, member, body = call
        if member.startswith("List"): return rows
        values = {"LoadState": "loaded", "InvocationID": b"\\1" * 16, "ControlGroup": "/web", "LogExtraFields": []}
        return values.get(body[1], 0)

sys.modules["solo5_systemd.bus.blocking"] = blocking = type(sys)("blocking")  # without pystemd, and what it imports
blocking.BlockingBus = Bus
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.main import run
from solo5_systemd.cli.terminal import standard_screen
try: assert run(words, CommandContext(standard_screen(), root=False)) == 0
except SystemExit as left: assert left.code == 0
"""
"""The last word is the number of tasks that run."""

START = """
from solo5_systemd.cli import context
context.connect = lambda: 1 / 0
async def command(engine): return 0
try: context.CommandContext(None, root=True).run(command)
except ZeroDivisionError: pass  # with the event loop
for module in words: __import__(f"solo5_systemd.{module}")
"""

PREPARATION = """
from solo5_systemd.pid1 import __main__ as program
program.gc.disable = lambda: None
try: program.main("prepare", words)  # without a name: it imports all that a preparation does
except IndexError: pass
"""

SERVICE = """
from solo5_systemd.dbus import process
found, service = process.import_module, type(sys)("service")
service.main = lambda: 0
process.import_module = lambda name: found(name) and service
assert process.run_module(*words) == 0
"""

PLUGIN = """
from solo5_systemd.nomad.__main__ import main
try: main()  # without Nomad's magic cookie: it imports all that a launch does, and exits
except SystemExit as left: assert left.code == 1
for name in words: __import__(f"solo5_systemd.{name}")
"""

FINGERPRINT = "sys.argv[1:] = ['fingerprint']; from solo5_systemd.host_volume.__main__ import main; main()"

STARTS = (
    "bus.manager bus.network_client engine.runtime engine.start host.tenders image.store journal.console "
    "network.namespaces settings.files task.setting_values users.allocation"
)
"""The modules that import all others of a start of a task without disks."""


@pytest.mark.parametrize(
    "code, words, budget",  # a fifth more than are imported with Python 3.11; of a start and a launch a fifteenth
    [
        pytest.param(VERB, "--help 0", 68, id="help"),
        pytest.param(VERB, "inspect --help 0", 71, id="help of a verb"),
        pytest.param(VERB, "ps 0", 84, id="ps of nothing"),
        pytest.param(VERB, "ps 1", 122, id="ps"),
        pytest.param(VERB, "ps --all --quiet 1", 84, id="ps --quiet"),
        pytest.param(VERB, "ps --json 0", 84, id="ps --json of nothing"),
        pytest.param(VERB, "ps --json 1", 144, id="ps --json"),
        pytest.param(VERB, "inspect web 1", 147, id="inspect"),
        pytest.param(VERB, "stats --no-stream 1", 110, id="stats"),
        pytest.param(VERB, "metrics 1", 137, id="metrics"),
        pytest.param(BLOCKING, "", 107, id="the connection of a read"),
        pytest.param(START, STARTS, 281, id="start"),
        pytest.param(PREPARATION, "", 283, id="preparation of a declared task"),
        pytest.param(PREPARATION, "--clear", 199, id="clearing up after a declared task"),
        pytest.param(SERVICE, "solo5_systemd.relay.main", 224, id="relay"),
        pytest.param(SERVICE, "solo5_systemd.networkd.main", 560, id="network service"),
        pytest.param(PLUGIN, "", 276, id="launch of the plugin"),
        pytest.param(PLUGIN, "nomad.service", 360, id="the driver"),
        pytest.param(PLUGIN, "nomad.service bus.manager host.probe engine.start", 474, id="the plugin with a task"),
        pytest.param(FINGERPRINT, "", 3, id="fingerprint of solo5-disk"),
    ],
)  # fmt: skip
def test_a_process_imports_few_modules(code: str, words: str, budget: int) -> None:
    done = python(COUNTED.format(code=code), *words.split(), NOMAD_PLUGIN_MAGIC_COOKIE="")
    found = set(done.stderr.splitlines()[-1].split())
    assert code == BLOCKING or not found & NEVER
    assert len(found) <= budget, sorted(found)
