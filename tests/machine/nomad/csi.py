"""A job that runs the CSI plugin of these tests, and what a group says to have a volume of it."""

from pathlib import Path

from tests.machine.nomad.agent import DATA, api
from tests.machine.nomad.jobs import NEVER_AGAIN, block, group_hcl, task_hcl

PLUGIN = Path("/srv/tests/machine/nomad/csi_plugin.py")
DIRECTORY = Path("/srv/csi")
PUBLISHED = DATA / "client/csi/monolith/test"
"""Where Nomad has volumes of the plugin published; raw_exec has no mounts that would lead elsewhere."""

SPECIFICATION = """
id           = "{name}"
name         = "{name}"
type         = "csi"
plugin_id    = "test"
capacity_min = "1MiB"
capacity_max = "1MiB"
capability {{
  access_mode     = "single-node-writer"
  attachment_mode = "{mode}"
}}
"""


def plugin_job(directory: Path = DIRECTORY) -> str:
    """Return the job that runs the plugin on every node, with its volumes in a directory."""
    task = block("csi_plugin", id="test", type="monolith", mount_dir="/csi", stage_publish_base_dir=str(PUBLISHED))
    config = f'command = "/usr/bin/python3"\nargs = ["{PLUGIN}", "{directory}"]'
    plugin = task_hcl("plugin", config, driver="raw_exec", task=task, memory=64)
    return group_hcl("csi", plugin, kind="system", group=block("restart", delay="1s"))


def volume(mode: str, options: str = "") -> str:
    """Return a group's request for the CSI volume `data`."""
    how = {"access_mode": "single-node-writer", "attachment_mode": mode}
    return block("volume", "data", type="csi", source="data", more=options, **how) + NEVER_AGAIN


def is_healthy(nodes: int = 1) -> bool:
    """Return whether the plugin serves on so many nodes."""
    found = [each for each in api("/v1/plugins?type=csi") if each["ID"] == "test"]
    return bool(found) and found[0]["NodesHealthy"] == found[0]["ControllersHealthy"] == nodes
