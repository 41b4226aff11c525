"""What the plugin and the two services import: a module is memory for as long as they run."""

import json

import pytest
from tests.support.interpreter import python

UNUSED = {
    "dbus_fast.introspection", "dbus_fast.message_bus", "dbus_next.introspection", "dbus_next.message_bus",
    "lxml", "pdb", "pystemd", "sqlite3", "xml.etree.ElementTree",
}  # fmt: skip
"""Modules of libraries that nothing of this package uses."""

LATER = {"nftables", "pyroute2"} | {
    f"solo5_systemd.{name}" for name in ("bus.manager", "dbus.messages", "engine.start", "host.probe", "image.elf")
}
"""Modules that a plugin needs for a fingerprint or a task: Nomad launches several for their names and schemas only."""

OF_OTHER_PATHS = {"argparse"} | {
    f"solo5_systemd.{name}" for name in ("engine.gc", "engine.runtime", "host.tenders", "pid1.generator")
}
"""What a preparation of a declared task does not need, or only for some tasks: a boot has one for each task."""

OF_A_START = {"bz2", "lzma", "shutil"} | {
    f"solo5_systemd.{name}"
    for name in (
        "declared.declaration", "declared.unit_file", "engine.plan", "engine.start", "image.manifest", "image.store",
        "pid1.prepare", "storage.backing_files", "unit.outcome", "unit.translate",
    )
}  # fmt: skip
"""What clearing up after a declared task does not need: a stop of the host has one for each task."""

PREPARATION = """
import json, sys
from solo5_systemd.pid1 import __main__ as program

program.gc.disable = lambda: None
try:
    program.main("prepare", sys.argv[1:])  # without a name: it imports all that a preparation does
except IndexError:
    pass
print(json.dumps(sorted(sys.modules)))
"""

SERVICE = """
import json, sys
from types import SimpleNamespace
from solo5_systemd.dbus import process

found = process.import_module
process.import_module = lambda name: found(name) and SimpleNamespace(main=lambda: 0)
assert process.run_module(sys.argv[1]) == 0
print(json.dumps(sorted(sys.modules)))
"""

PLUGIN = """
import json, sys
from solo5_systemd.nomad.__main__ import main

try:
    main()  # without Nomad's magic cookie: it imports all that a launch does, and exits
except SystemExit as left:
    assert left.code == 1
for name in sys.argv[1:]:
    __import__(name)
print(json.dumps(sorted(sys.modules)))
"""


def modules(code: str, *arguments: str) -> set[str]:
    done = python(code, *arguments, NOMAD_PLUGIN_MAGIC_COOKIE="")
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("service", ["solo5_systemd.relay.main", "solo5_systemd.networkd.main"])
def test_a_service_imports_no_module_that_it_does_not_use(service: str) -> None:
    found = modules(SERVICE, service)
    assert service in found
    assert found & UNUSED == set()


def test_a_preparation_imports_nothing_of_other_paths() -> None:
    found = modules(PREPARATION)
    assert "solo5_systemd.pid1.prepare" in found
    assert found & OF_OTHER_PATHS == set()


def test_what_clears_up_imports_nothing_of_a_start() -> None:
    found = modules(PREPARATION, "--clear")
    assert "solo5_systemd.pid1.clear" in found
    assert found & OF_A_START == set()


def test_a_plugin_imports_no_module_that_it_does_not_use() -> None:
    found = modules(PLUGIN, "solo5_systemd.bus.manager", "solo5_systemd.host.probe", "solo5_systemd.engine.start")
    assert "solo5_systemd.dbus.messages" in found
    assert found & UNUSED == set()


def test_a_launch_imports_nothing_for_tasks() -> None:
    found = modules(PLUGIN)
    assert "grpc.aio" in found
    assert found & LATER == set()
