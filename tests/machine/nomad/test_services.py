"""Services of tasks, in Nomad's own registry, with checks that are made for real."""

import json

import pytest
from tests.machine.conftest import eventually, ok, sh
from tests.machine.nomad.agent import NODE_ADDRESS
from tests.machine.nomad.jobs import NEVER_AGAIN, SERVER, Jobs, hcl, port, unit

WEB = 'network {\n  port "web" {\n    to = 80\n  }\n}\n'


def service(mode: str) -> str:
    return f"""
service {{
  name         = "web"
  provider     = "nomad"
  port         = "web"
  address_mode = "{mode}"
  check {{
    type     = "http"
    path     = "/"
    interval = "1s"
    timeout  = "2s"
  }}
}}
"""


def registered() -> list[tuple[str, int]]:
    """Where the service is, by Nomad's registry, which hears of it after the task runs."""
    found = sh("nomad", "service", "info", "-json", "web")
    return [(each["Address"], each["Port"]) for each in json.loads(found.stdout)] if found.returncode == 0 else []


@pytest.mark.parametrize("mode", ["auto", "driver"])
def test_service_is_registered_and_its_check_passes(jobs: Jobs, mode: str) -> None:
    [alloc] = jobs.run(hcl("served", SERVER, group=NEVER_AGAIN + WEB, task=service(mode)))
    name = unit(alloc).removeprefix("solo5-task-").removesuffix(".service")
    [about] = json.loads(ok("solo5ctl", "inspect", "--json", name))
    guest = about["nics"][0]["ipv4"].partition("/")[0]
    expected = (guest, 80) if mode == "driver" else (NODE_ADDRESS, port(alloc, "web"))
    eventually(lambda: registered() == [expected], f"it is registered at {expected}, and nowhere else")
    eventually(lambda: "success" in ok("nomad", "alloc", "checks", alloc), "the check passes")
