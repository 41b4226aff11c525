"""A Nomad server and a client agent on this machine, each a unit of its own as HashiCorp runs them."""

import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.machine.conftest import GUESTS, eventually, ok, sh, unit_property

from solo5_systemd.nomad.config.plugin import TIGHTENING
from solo5_systemd.unit.limits import missing

T = TypeVar("T")

HTTP = "http://127.0.0.1:4646"
SERVER_HTTP_PORT = 4746
NODE_ADDRESS = "192.0.2.1"
SECOND_ADDRESS = "198.51.100.1"
"""Of the host network `second`."""

DATA = Path("/var/lib/nomad")
PLUGINS = Path("/usr/lib/nomad/plugins")
UNIT = "nomad.service"
SERVER_UNIT = "nomad-server.service"
_CONFIG = Path("/etc/nomad.d")
_UNITS = Path("/run/systemd/system")

# Where the agent ends, its plugins and tasks do not: KillMode=process.
_SERVICE = """
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

# A client that knows no server yet asks for one every second, and one that a young server turns away waits for
# 15 to 30: so it is told of the server when that is ready.
_CLIENT = """
plugin_dir = "{plugins}"
client {{
  enabled           = true
  network_interface = "cable"
  options           = {{
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault"
    "driver.allowlist"     = "solo5,raw_exec"
  }}
  host_network "second" {{
    cidr = "{second}/32"
  }}
  host_network "loopback" {{
    cidr = "127.0.0.0/8"
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
LACKS_CONTROLLERS = bool(missing(_CONTROLLERS.read_text().split() if _CONTROLLERS.exists() else None))
"""Of a container on a host whose controllers belong to cgroup v1."""

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
USUAL = f"{PLAIN}{SCOPES}allowed_properties = {json.dumps(_ALLOWED)}\n"
WATCHFUL = USUAL + 'gc {\n  dangling_tasks {\n    period = "1s"\n    creation_grace = "10s"\n  }\n}\n'


def api(path: str, method: str = "GET", body: object = None) -> Any:
    """What the client agent's API answers; a refusal fails the test with its reason."""
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
    """The client agent, which the tests restart, kill and ask; the server beside it only runs."""

    node: str = ""
    since: dict[str, str] = field(default_factory=dict)

    def install(self, config: str = USUAL) -> None:
        assert shutil.which("nomad"), "nomad is not in this machine: boot it with --with nomad"
        _CONFIG.mkdir(exist_ok=True)
        server = _COMMON.format(data=f"{DATA}-server") + _SERVER.format(port=SERVER_HTTP_PORT)
        (_CONFIG / "server.hcl").write_text(server)
        self.configure(config)
        (_UNITS / SERVER_UNIT).write_text(_SERVICE.format(config=_CONFIG / "server.hcl"))
        (_UNITS / UNIT).write_text(_SERVICE.format(config=_CONFIG / "client.hcl"))
        ok("systemctl", "daemon-reload")
        ok("systemctl", "start", SERVER_UNIT)
        self.start()

    def configure(self, config: str) -> None:
        """Write the client's configuration, the plugin's part as given; it holds from the next start on."""
        client = _CLIENT.format(plugins=PLUGINS, second=SECOND_ADDRESS, config=config)
        (_CONFIG / "client.hcl").write_text(_COMMON.format(data=DATA) + client)

    def start(self) -> None:
        """Start the agent, and wait until its node can be given work."""
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
        """The node as the server has it."""
        node = api(f"/v1/node/{self.node}")
        assert isinstance(node, dict)
        return node

    def driver(self) -> dict[str, Any]:
        """What the node says of the driver: Detected, Healthy, HealthDescription, Attributes."""
        driver = self.about()["Drivers"].get("solo5", {})
        assert isinstance(driver, dict)
        return driver

    def heal(self) -> None:
        """Start it where a test that failed has left it dead."""
        if sh("systemctl", "is-active", "--quiet", UNIT).returncode:
            self.start()

    def stop(self) -> None:
        ok("systemctl", "stop", UNIT)

    def kill(self) -> None:
        """End the agent with SIGKILL; its plugin and its tasks know nothing of it."""
        ok("systemctl", "kill", "--kill-whom=main", "--signal=KILL", UNIT)
        eventually(lambda: sh("systemctl", "is-active", UNIT).stdout.strip() == "failed", "the agent is dead")
        ok("systemctl", "reset-failed", UNIT)

    def kill_with_plugin(self) -> None:
        """End agent and plugin by SIGKILL, so that neither lives to see the other dead."""
        main = int(unit_property(UNIT, "MainPID"))
        os.kill(main, signal.SIGSTOP)
        eventually(lambda: _state(main) == "T", "the agent stands still")
        os.kill(self.plugin(), signal.SIGKILL)
        self.kill()

    def plugin(self) -> int:
        """The process id of the plugin that serves tasks, as soon as those before it are dead."""
        return one(plugins, "process")

    def log(self, since: str = "") -> str:
        """The agent's log, from `since` on (a time of journalctl's)."""
        start = (f"--since={since}",) if since else ()
        return ok("journalctl", "--quiet", "--no-pager", "--output=cat", "--unit", UNIT, *start)

    def remove(self) -> None:
        sh("systemctl", "stop", UNIT, SERVER_UNIT)
        sh("systemctl", "reset-failed", UNIT, SERVER_UNIT)  # an agent that is asked to end exits with 1
        for path in (_UNITS / UNIT, _UNITS / SERVER_UNIT):
            path.unlink()
        ok("systemctl", "daemon-reload")
        for folder in (DATA, Path(f"{DATA}-server"), _CONFIG):
            shutil.rmtree(folder)


def _state(pid: int) -> str:
    """The letter of proc(5), stat."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def plugins() -> list[int]:
    """The processes of the driver."""
    return [int(word) for word in sh("pgrep", "--full", f"{PLUGINS}/solo5").stdout.split()]


def one(find: Callable[[], list[T]], what: str) -> T:
    """The only thing that is found, as soon as it is that: a fork has its parent's command line for a moment."""
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
