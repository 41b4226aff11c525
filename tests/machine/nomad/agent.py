"""A Nomad server and a client agent on this machine, each a unit of its own as HashiCorp runs them."""

import json
import os
import platform
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.machine.conftest import GUESTS, eventually, ok, sh, unit_property

from solo5_systemd.nomad.plugin_config import TIGHTENING
from solo5_systemd.task.properties import missing_controllers

T = TypeVar("T")

HTTP = "http://127.0.0.1:4646"
SERVER_HTTP_PORT = 4746
NODE_ADDRESS = "192.0.2.1"
SECOND_ADDRESS = "198.51.100.1"
"""Of the host network `second`."""

SIX_ADDRESS = "2001:db8:5::1"
"""Of the host network `six`."""

DATA = Path("/var/lib/nomad")
PLUGINS = Path("/usr/lib/nomad/plugins")
UNIT = "nomad.service"
SERVER_UNIT = "nomad-server.service"
_CONFIG = Path("/etc/nomad.d")
_UNITS = Path("/run/systemd/system")
_MODULES = Path("/lib/modules", platform.release())
VOLUME_PLUGINS = Path("/usr/lib/nomad/host_volume_plugins")
VOLUMES = Path("/srv/volumes")
"""Has the directory of the node's host volumes `static` and, read-only, `reading`."""

CNI = Path("/etc/cni.d")
"""The directory of the networks of CNI, for `network { mode = "cni/NAME" }`."""

# Where the agent ends, its plugins and tasks do not: KillMode=process. Tests restart it as often as they like: by
# default, PID 1 refuses the sixth start within ten seconds.
_SERVICE = """
[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/local/bin/nomad agent -config {config}
KillMode=process
KillSignal=SIGINT
LimitNOFILE=65536
TasksMax=infinity
"""

_COMMON = """
data_dir             = "{data}"
bind_addr            = "127.0.0.1"
disable_update_check = true
log_level            = "DEBUG"
advertise {{
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}}
"""

# An agent that is started again is away for half a minute where the machine is busy: by default its node is down after
# 20 seconds without a heartbeat, and its allocations are replaced.
_SERVER = """
ports {{
  http = {port}
}}
server {{
  enabled          = true
  bootstrap_expect = 1
  heartbeat_grace  = "5m"
  default_scheduler_config {{
    memory_oversubscription_enabled = true
  }}
}}
"""

# A client without a server looks for one every second, and one that a starting server rejects waits for 15 to 30:
# so it gets the server only when that is ready.
_CLIENT = """
plugin_dir = "{plugins}"
client {{
  enabled           = true
  network_interface = "cable"
  cni_path          = "/usr/lib/cni"
  cni_config_dir    = "{cni}"
  host_volume_plugin_dir = "{volume_plugins}"
  host_volume "static" {{
    path = "{volumes}/static"
  }}
  host_volume "reading" {{
    path      = "{volumes}/static"
    read_only = true
  }}
  options           = {{
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault"
    "driver.allowlist"     = "solo5,raw_exec"
  }}
  reserved {{
    reserved_ports = "8700-8702"
  }}
  host_network "second" {{
    cidr           = "{second}/32"
    reserved_ports = "8710"
  }}
  host_network "loopback" {{
    cidr = "127.0.0.0/8"
  }}
  host_network "six" {{
    cidr = "{six}/128"
  }}
  host_network "loopback6" {{
    cidr = "::1/128"
  }}
}}
plugin "raw_exec" {{
  config {{
    enabled = true
  }}
}}
telemetry {{
  collection_interval         = "1s"
  publish_allocation_metrics = true
}}
plugin "solo5" {{
  config {{
    {config}
  }}
}}
"""

DISKS = Path("/srv/disks")
_CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
LACKS_CONTROLLERS = bool(missing_controllers(_CONTROLLERS.read_text().split() if _CONTROLLERS.exists() else None))
"""Whether controllers are missing, as in a container on a host with cgroup v1."""

STRICT = f"""
image_paths = ["{GUESTS}"]
block_paths = ["{DISKS}"]
network "management" {{
  ipv4   = "10.98.0.0/24"
  bridge = "management"
}}
"""
# In the VM from the start: a restart of the agent takes half a minute there.
_IN_VM = ("MemoryLow", "MemorySwapMax", "OOMScoreAdjust", "AllowedMemoryNodes", "CPUQuotaPeriodSec", "IOWeight")
_ALLOWED = (*TIGHTENING, "LogRateLimitBurst", *(_IN_VM if os.environ.get("TEST_MACHINE") == "vm" else ()))
SCOPES = 'allowed_units = ["service", "scope"]\n'
PLAIN = STRICT + ("allow_missing_controllers = true\n" if LACKS_CONTROLLERS else "")
USUAL = f"""{PLAIN}{SCOPES}
allowed_properties = {json.dumps(_ALLOWED)}
allowed_disks      = ["web-*", "chaos-*"]
ceilings {{
  disk_mb = 512
}}
network "served" {{
  dhcp   = true
  dns    = ["9.9.9.9"]
  search = ["example.org"]
}}
network "joined" {{
  join     = "br7"
  ipv4     = "10.66.0.0/24"
  pool     = "10.66.0.200-10.66.0.209"
  ipv6     = "fd66::/64"
  pool6    = "fd66::200-fd66::209"
  gateway6 = "fe80::1"
}}
network "tagged" {{
  join = "br7"
  vlan = 20
}}
"""
"""What most tests need, together: each restart for another configuration takes some six seconds."""

_GC = 'gc {\n  dangling_tasks {\n    period = "1s"\n    creation_grace = "10s"\n  }\n}\n'
WATCHFUL = f"{USUAL}{_GC}"
"""With a short period for forgotten tasks."""


def api(path: str, method: str = "GET", body: object = None) -> Any:
    """Call the client agent's HTTP API, and return the response; an error fails the test."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{HTTP}{path}", data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path} → {error.code}: {error.read().decode()}") from error
    return json.loads(text) if text else None


@dataclass
class Agent:
    """The client agent, which the tests restart, kill and query; the server keeps running."""

    node: str = ""
    config: str = ""
    """The plugin configuration of the last start, or for the next one."""

    def install(self, config: str = USUAL) -> None:
        assert shutil.which("nomad"), "nomad is not in this machine: boot it with --with nomad"
        _CONFIG.mkdir(exist_ok=True)
        CNI.mkdir(exist_ok=True)
        (VOLUMES / "static").mkdir(parents=True, exist_ok=True)
        if not _MODULES.exists():  # of the host's kernel in a container: the agent looks for bridges there
            _MODULES.mkdir()
            (_MODULES / "modules.builtin").write_text("kernel/net/bridge/bridge.ko\n")
        server = _COMMON.format(data=f"{DATA}-server") + _SERVER.format(port=SERVER_HTTP_PORT)
        (_CONFIG / "server.hcl").write_text(server)
        self.configure(config)
        (_UNITS / SERVER_UNIT).write_text(_SERVICE.format(config=_CONFIG / "server.hcl"))
        (_UNITS / UNIT).write_text(_SERVICE.format(config=_CONFIG / "client.hcl"))
        ok("systemctl", "daemon-reload")
        ok("systemctl", "start", SERVER_UNIT)
        self.start()

    def use(self, config: str) -> None:
        """Run with this plugin configuration, and wait for a healthy driver; restart only for another configuration."""
        if config != self.config:
            self.restart(config)
        eventually(lambda: self.driver().get("Healthy"), "the driver works", 60)

    def restart(self, config: str) -> None:
        self.stop()
        self.configure(config)
        self.start()

    def configure(self, config: str) -> None:
        """Write the client's configuration with this plugin configuration, for the next start."""
        self.config = config
        client = _CLIENT.format(
            plugins=PLUGINS,
            second=SECOND_ADDRESS,
            six=SIX_ADDRESS,
            cni=CNI,
            config=config,
            volume_plugins=VOLUME_PLUGINS,
            volumes=VOLUMES,
        )
        (_CONFIG / "client.hcl").write_text(_COMMON.format(data=DATA) + client)

    def start(self) -> None:
        """Start the agent, and wait until its node is eligible."""
        ok("systemctl", "start", UNIT)
        eventually(_server_is_ready, "the server has a leader and keys")
        eventually(lambda: _answers("/v1/agent/self"), "the agent answers")
        api("/v1/agent/servers?address=127.0.0.1:4647", "PUT")
        eventually(self._is_ready, "the node is ready")

    def _is_ready(self) -> bool:
        self.node = api("/v1/agent/self")["stats"]["client"]["node_id"]
        node = _answers(f"/v1/node/{self.node}")
        return bool(node) and node["Status"] == "ready"

    def about(self) -> dict[str, Any]:
        """Return the server's record of the node."""
        node = api(f"/v1/node/{self.node}")
        assert isinstance(node, dict)
        return node

    def driver(self) -> dict[str, Any]:
        """Return the node's record of the driver: Detected, Healthy, HealthDescription, Attributes."""
        driver = self.about()["Drivers"].get("solo5", {})
        assert isinstance(driver, dict)
        return driver

    def heal(self) -> None:
        """Start the agent if a failed test has left it dead."""
        if sh("systemctl", "is-active", "--quiet", UNIT).returncode:
            self.start()

    def stop(self) -> None:
        ok("systemctl", "stop", UNIT)

    def kill(self) -> None:
        """Kill the agent with SIGKILL; its plugin and its tasks keep running."""
        ok("systemctl", "kill", "--kill-whom=main", "--signal=KILL", UNIT)
        eventually(lambda: sh("systemctl", "is-active", UNIT).stdout.strip() == "failed", "the agent is dead")
        ok("systemctl", "reset-failed", UNIT)

    def kill_with_plugin(self) -> None:
        """Kill agent and plugin with SIGKILL, so that neither reacts to the death of the other."""
        main = int(unit_property(UNIT, "MainPID"))
        os.kill(main, signal.SIGSTOP)
        eventually(lambda: _state(main) == "T", "the agent stands still")
        os.kill(self.plugin(), signal.SIGKILL)
        self.kill()

    def plugin(self) -> int:
        """Wait until earlier plugins are dead, and return the process ID of the plugin that serves tasks."""
        return one(plugins, "process")

    def kill_plugin(self) -> None:
        """Kill the plugin with SIGKILL, and wait until the agent has launched another."""
        first = self.plugin()
        os.kill(first, signal.SIGKILL)
        eventually(lambda: first not in plugins() != [], "another driver is there")

    def log(self, since: str = "") -> str:
        """Return the agent's log from `since` on (a time of journalctl(1))."""
        start = (f"--since={since}",) if since else ()
        return ok("journalctl", "--quiet", "--no-pager", "--output=cat", "--unit", UNIT, *start)

    def remove(self) -> None:
        sh("systemctl", "stop", UNIT, SERVER_UNIT)
        sh("systemctl", "reset-failed", UNIT, SERVER_UNIT)  # an agent that is stopped exits with 1
        for path in (_UNITS / UNIT, _UNITS / SERVER_UNIT):
            path.unlink()
        ok("systemctl", "daemon-reload")
        for folder in (DATA, Path(f"{DATA}-server"), _CONFIG, VOLUMES):
            shutil.rmtree(folder)


def _state(pid: int) -> str:
    """Return the state letter of proc(5), stat."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def plugins() -> list[int]:
    """Return the driver's process IDs."""
    return [int(word) for word in sh("pgrep", "--full", f"{PLUGINS}/solo5").stdout.split()]


def one(find: Callable[[], list[T]], what: str) -> T:
    """Wait until exactly one is found, and return it: a fork briefly has its parent's command line."""
    found: list[T] = []

    def is_one() -> bool:
        found[:] = find()
        return len(found) == 1

    eventually(is_one, f"there is one {what}")
    return found[0]


def _answers(path: str) -> Any:
    try:
        return api(path)
    except (OSError, AssertionError):
        return None


def _server_is_ready() -> bool:
    """A leader without keys cannot register a node."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{SERVER_HTTP_PORT}/v1/operator/keyring/keys") as answer:
            return b'"active"' in answer.read()
    except OSError:
        return False
