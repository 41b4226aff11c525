"""The plugin's gRPC interface, called with Nomad's own Go packages."""

import json
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Machine, sh

TASK = {
    "name": "guest",
    "job": "trial",
    "config": {
        "unikernel": f"{GUESTS}/net.spt",
        "args": ["--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}"],
    },
    "ports": [{"label": "web", "to": 80}, {"label": "echo", "to": 7}],
}


@pytest.mark.timeout(300)
def test_every_claim_that_nomad_relies_on_holds(machine: Machine, tmp_path: Path) -> None:
    task = tmp_path / "task.json"
    task.write_text(json.dumps(TASK))
    config = json.dumps({"image_paths": [str(GUESTS)], "allow_missing_controllers": True})
    done = sh("driver-client", "conformance", "--task", str(task), "--config", config, timeout=280)
    verdicts = json.JSONDecoder().raw_decode(done.stdout)[0]
    assert isinstance(verdicts, list), done.stdout
    wrong = [f"{verdict['claim']}: {verdict['problem']}" for verdict in verdicts if verdict["problem"]]
    assert not wrong, "\n".join(wrong) + "\n" + done.stderr
    assert done.returncode == 0
