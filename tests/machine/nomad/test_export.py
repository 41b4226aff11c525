"""`solo5ctl export` of a task of Nomad."""

from tests.machine.conftest import GUESTS, inspect, ok
from tests.machine.nomad.jobs import NEVER_AGAIN, Jobs, hcl, name_of, says

from solo5_systemd.declared.declaration import parse_declaration
from solo5_systemd.declared.syntax import HostNames, Source

CONFIG = f"""
unikernel = "{GUESTS}/net.hvt"
args      = ["{{mirage}}", "--tcp=80", "--name={{name}}"]
ports     = ["web"]
labels    = {{ TEAM = "site" }}
"""
PORTS = """
network {
  port "web" {
    static = 8083
    to     = 80
  }
}
"""


def test_a_task_of_nomad_is_exported_with_its_ports_and_labels(jobs: Jobs) -> None:
    [alloc] = jobs.run(hcl("exported", CONFIG, group=NEVER_AGAIN + PORTS))
    says(alloc, "serving")
    name = name_of(alloc)
    text = ok("solo5ctl", "export", name)
    found = parse_declaration(name, [Source(path=name, content=text.encode())], host=HostNames()).workload
    assert "# It is a task of Nomad (exported/" in text
    assert "stop the job before this starts" in text
    assert (found.image, found.memory) == (f"{GUESTS}/net.hvt", 32 << 20)
    assert found.arguments == ("{mirage}", "--tcp=80", f"--name={name}")
    assert {(port.host_port, port.port) for port in found.publish} == {(8083, 80)}
    assert found.log_fields == (("TEAM", "site"),)
    assert [nic.nic for nic in found.nics] == [nic["nic"] for nic in inspect(name)["nics"]]
