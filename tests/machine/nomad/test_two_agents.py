"""Two client agents on one machine, each with a plugin process of its own: one disk has one writer."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, eventually, ok, sh
from tests.machine.nomad.agent import _COMMON, _CONFIG, _SERVICE, _UNITS, PLUGINS, USUAL, Agent, api, plugins
from tests.machine.nomad.jobs import Jobs, allocation, allocations, ended, hcl, refusal, running

DATA = Path("/var/lib/nomad-second")
UNIT = "nomad-second.service"
CLIENT = """
name = "second"
ports {{
  http = 5646
}}
plugin_dir = "{plugins}"
client {{
  enabled           = true
  node_class        = "second"
  network_interface = "cable"
  servers           = ["127.0.0.1:4647"]
  options           = {{
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault"
    "driver.allowlist"     = "solo5"
  }}
}}
plugin "solo5" {{
  config {{
    {config}
  }}
}}
"""
DISK = Path("/var/lib/solo5/disks/web-1")


@pytest.fixture
def second(agent: Agent) -> Iterator[int]:
    """Another agent of the same server; yields its plugin's process ID."""
    config = CLIENT.format(plugins=PLUGINS, config=USUAL)
    path = _CONFIG / "second.hcl"
    path.write_text(_COMMON.format(data=DATA) + config)
    (_UNITS / UNIT).write_text(_SERVICE.format(config=path))
    before = set(plugins())
    ok("systemctl", "daemon-reload")
    ok("systemctl", "start", UNIT)
    try:
        eventually(is_healthy, "the second node's driver works")
        [plugin] = set(plugins()) - before
        yield plugin
    finally:
        sh("systemctl", "stop", UNIT)
        sh("systemctl", "reset-failed", UNIT)
        (_UNITS / UNIT).unlink()
        ok("systemctl", "daemon-reload")
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (point := line.split()[1]).startswith(f"{DATA}/"):
                ok("umount", point)
        shutil.rmtree(DATA)
        DISK.unlink()


def is_healthy() -> bool:
    for node in api("/v1/nodes"):
        if node["Name"] == "second" and node["Status"] == "ready":
            return bool(node["Drivers"].get("solo5", {}).get("Healthy"))
    return False


def job(name: str, on_second: bool, *words: str) -> str:
    args = ", ".join(f'"{word}"' for word in words)
    disk = 'block "storage" {\n  disk = "web-1"\n  create = true\n  size = "1M"\n}\n'
    operator = "=" if on_second else "!="
    where = f'attribute = "${{node.class}}"\noperator = "{operator}"\nvalue = "second"'
    return hcl(name, f'unikernel = "{GUESTS}/disk.spt"\nargs = [{args}]\n{disk}', job=f"constraint {{\n{where}\n}}\n")


def test_one_disk_has_one_writer_of_two_agents(second: int, jobs: Jobs) -> None:
    jobs.run(job("one", False, "write=one", "read", "stay"))
    eventually(lambda: DISK.read_bytes().startswith(b"one\0"), "it has written")
    jobs.submit(job("two", True, "write=two", "read", "stay"))
    assert "is in use by another task: expected a disk without a lock" in refusal(ended("two"))
    assert DISK.read_bytes().startswith(b"one\0")
    api("/v1/job/one", "DELETE")
    ended("one")
    jobs.run(job("three", True, "write=three", "read", "stay"))
    eventually(lambda: DISK.read_bytes().startswith(b"three\0"), "the other node's task has it now")
    os.kill(second, signal.SIGKILL)
    jobs.submit(job("four", False, "write=four", "stay"))
    assert "is in use by another task" in refusal(ended("four"))
    assert DISK.read_bytes().startswith(b"three\0")
    running("three")
    [alloc] = allocations("three")
    assert allocation(alloc["ID"])["ClientStatus"] == "running"
