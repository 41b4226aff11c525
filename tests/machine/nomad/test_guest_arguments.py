"""What a guest must know, by placeholders in a job's `args`."""

from tests.machine.conftest import GUESTS, eventually, inspect, ok, unit_property
from tests.machine.nomad.agent import NODE_ADDRESS
from tests.machine.nomad.jobs import (
    ADDRESSES,
    NEVER_AGAIN,
    Jobs,
    ended,
    group_hcl,
    hcl,
    logs,
    name_of,
    port,
    status,
    task_hcl,
    unit,
)

HELLO = f'unikernel = "{GUESTS}/hello.spt"\n'
SLEEPER = f'unikernel = "{GUESTS}/sleeper.spt"\n'
PORTS = 'port "web" {\n  to = 80\n}\nport "dns" {\n  to = 53\n}\n'


def network(lines: str) -> str:
    return NEVER_AGAIN + f"network {{\n{lines}\n}}\n"


def dns(servers: str) -> str:
    return f'dns {{\n  servers = [{servers}]\n  searches = ["lan"]\n}}\n'


def test_name_servers_of_the_group_are_interpolated_by_nomad(jobs: Jobs) -> None:
    config = HELLO + 'args = ["{dns1}", "{dns2}", "{search}"]'
    servers = '"9.9.9.9", "${attr.unique.network.ip-address}"'
    alloc = ended(jobs.submit(hcl("interpolated", config, kind="batch", group=network(dns(servers)))))
    eventually(lambda: f"arguments: '9.9.9.9 {NODE_ADDRESS} lan'" in logs(alloc), status(alloc))


def test_hosts_of_the_job_are_among_the_arguments(jobs: Jobs) -> None:
    """Interpolated by Nomad; the gateway is that of the NIC."""
    hosts = '"db:192.0.2.7", "db:2001:db8::7", "node:${attr.unique.network.ip-address}", "up:host-gateway"'
    config = f'unikernel = "{GUESTS}/net.spt"\nargs = ["--hosts={{hosts}}", {ADDRESSES}]\nextra_hosts = [{hosts}]'
    [alloc] = jobs.run(hcl("hosts", config))
    about = inspect(name_of(alloc))
    gateway = about["nics"][0]["gateway4"]
    named = ["db=192.0.2.7", "db=2001:db8::7", f"node={NODE_ADDRESS}", f"up={gateway}"]
    assert about["hosts"] == named
    assert f"--hosts={','.join(named)}" in unit_property(unit(alloc), "ExecStart")


def test_ports_of_the_group_by_label_and_of_the_guest_by_number(jobs: Jobs) -> None:
    config = f'unikernel = "{GUESTS}/net.spt"\nports = ["web"]\n'
    config += 'args = ["{port.web}/{port.dns}", "{port.80/tcp}", "${NOMAD_HOST_PORT_web}"]'
    [alloc] = jobs.run(hcl("ported", config, memory=64, group=network(PORTS)))
    web, other = port(alloc, "web"), port(alloc, "dns")
    assert f"{web}/{other} {web} {web}" in unit_property(unit(alloc), "ExecStart")


def test_scope_and_every_task_of_a_group_have_the_groups_name_servers(jobs: Jobs) -> None:
    tasks = [
        task_hcl(name, SLEEPER + f'args = ["{{dns}}", "{{search}}"]\nports = []\n{kind}')
        for name, kind in (("one", ""), ("two", 'unit = "scope"\n'))
    ]
    jobs.run(group_hcl("several", *tasks, group=network(dns('"9.9.9.9"'))))
    names = [name for name in ok("solo5ctl", "ps", "--quiet").split() if name.startswith(("one-", "two-"))]
    assert [inspect(name)["dns"] for name in names] == [["9.9.9.9"], ["9.9.9.9"]]
    assert {inspect(name)["kind"] for name in names} == {"service", "scope"}
