"""A Nomad server on this machine and a client agent on each of the others, with short timers."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.machines import Peer
from tests.machine.conftest import GUESTS, eventually, ok, sh
from tests.machine.nomad.agent import DATA, LACKS_CONTROLLERS, PLUGINS, VOLUME_PLUGINS, api

CLIENTS = tuple(Peer(f"client{number}") for number in (1, 2, 3))
SERVER = "server"
"""This machine's own name."""

LEAST_HEARTBEAT, GRACE = 1, 8
"""Seconds: a node is missed between GRACE and GRACE + 2 * LEAST_HEARTBEAT after its last heartbeat."""

LONG = 120.0
"""Seconds for what takes several of Nomad's timers."""

_UNIT = """
[Unit]
After=network.target

[Service]
ExecStart=/usr/local/bin/nomad agent -config /etc/nomad.hcl
KillMode=process
KillSignal=SIGINT
LimitNOFILE=65536
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""

_SERVER = f"""
data_dir             = "{DATA}"
bind_addr            = "0.0.0.0"
disable_update_check = true
advertise {{
  http = "{SERVER}"
  rpc  = "{SERVER}"
  serf = "{SERVER}"
}}
server {{
  enabled                  = true
  bootstrap_expect         = 1
  heartbeat_grace          = "{GRACE}s"
  min_heartbeat_ttl        = "{LEAST_HEARTBEAT}s"
  max_heartbeats_per_second = 1000
  default_scheduler_config {{
    scheduler_algorithm = "spread"
  }}
}}
"""

_CLIENT = f"""
data_dir             = "{DATA}"
bind_addr            = "0.0.0.0"
disable_update_check = true
plugin_dir           = "{PLUGINS}"
client {{
  enabled           = true
  network_interface = "host0"
  servers           = ["{SERVER}"]
  host_volume_plugin_dir = "{VOLUME_PLUGINS}"
  options           = {{
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault"
    "driver.allowlist"     = "solo5,raw_exec"
  }}
}}
plugin "raw_exec" {{
  config {{
    enabled = true
  }}
}}
plugin "solo5" {{
  config {{
    image_paths               = ["{GUESTS}"]
    allow_missing_controllers = {str(LACKS_CONTROLLERS).lower()}
  }}
}}
"""


@dataclass
class Agents:
    """The agents.

    Attributes:
        before: what there was on each client that a task could leave behind.
        nodes: each client's node id by its machine's name.
    """

    before: dict[Peer, dict[str, object]]
    nodes: dict[str, str] = field(default_factory=dict)

    def install(self) -> None:
        """Start the server, then the clients: one that a starting server rejects waits for 15 to 30 seconds."""
        Path("/etc/nomad.hcl").write_text(_SERVER)
        Path("/etc/systemd/system/nomad.service").write_text(_UNIT)
        ok("systemctl", "enable", "--now", "nomad")
        eventually(_has_keys, "the server has a leader and keys")
        for peer in CLIENTS:
            own = f'advertise {{\n  http = "{peer.name}"\n}}\n'  # from which other clients fetch a disk that migrates
            peer.write("/etc/nomad.hcl", _CLIENT + own)
            peer.write("/etc/systemd/system/nomad.service", _UNIT)
            peer.ok("systemctl", "enable", "--now", "nomad")
        eventually(lambda: len(self.listed()) == len(CLIENTS), "every client is registered", LONG)
        self.nodes = {node["Name"]: node["ID"] for node in self.listed()}
        self.all_ready()

    def listed(self) -> list[dict[str, Any]]:
        found = api("/v1/nodes")
        assert isinstance(found, list)
        return found

    def status(self, peer: Peer) -> str:
        """Return Nomad's status of a node: ready, disconnected, down."""
        return next(str(node["Status"]) for node in self.listed() if node["Name"] == peer.name)

    def all_ready(self) -> None:
        def claim() -> bool:
            return all(
                node["Status"] == "ready" and node["Drivers"].get("solo5", {}).get("Healthy") for node in self.listed()
            )

        eventually(claim, "every node is ready and has a healthy driver", LONG)

    def left_as_found(self, peer: Peer) -> None:
        """Wait until a client has nothing left of any task."""
        before, after = self.before[peer], peer.left()

        def claim() -> bool:
            api(f"/v1/client/gc?node_id={self.nodes[peer.name]}", "PUT")  # mounts of an allocation's directory
            after.update(peer.left())
            return after == before

        try:
            eventually(claim, f"{peer.name} is as before")
        except AssertionError as error:
            changed = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
            raise AssertionError(f"{error}\nleft on {peer.name} (before, after): {changed}") from error

    def drain(self, peer: Peer) -> None:
        ok("nomad", "node", "drain", "-enable", "-yes", "-detach", "-deadline", "120s", self.nodes[peer.name])

    def undrain(self, peer: Peer) -> None:
        ok("nomad", "node", "drain", "-disable", "-yes", self.nodes[peer.name])


def _has_keys() -> bool:
    done = sh("curl", "--silent", "http://127.0.0.1:4646/v1/operator/keyring/keys")
    return done.returncode == 0 and "active" in done.stdout and bool(json.loads(done.stdout))
