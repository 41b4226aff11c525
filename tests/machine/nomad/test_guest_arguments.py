"""What a guest must know, by placeholders in a job's `args`."""

from tests.machine.conftest import GUESTS, eventually, inspect, unit_property
from tests.machine.nomad.agent import NODE_ADDRESS
from tests.machine.nomad.jobs import ADDRESSES, NEVER_AGAIN, Jobs, ended, hcl, network

HELLO = f'unikernel = "{GUESTS}/hello.spt"\n'


def test_name_servers_of_the_group_are_interpolated_by_nomad(jobs: Jobs) -> None:
    config = HELLO + 'args = ["{dns1}", "{dns2}", "{search}"]'
    dns = 'dns {\n  servers = ["9.9.9.9", "${attr.unique.network.ip-address}"]\n  searches = ["lan"]\n}\n'
    alloc = ended(jobs.submit(hcl("interpolated", config, kind="batch", group=NEVER_AGAIN + network(dns))))
    eventually(lambda: f"arguments: '9.9.9.9 {NODE_ADDRESS} lan'" in alloc.logs(), alloc.status())


def test_hosts_and_ntp_servers_of_the_job_are_among_the_arguments(jobs: Jobs) -> None:
    """Interpolated by Nomad; the gateway is that of the NIC."""
    hosts = '"db:192.0.2.7", "db:2001:db8::7", "node:${attr.unique.network.ip-address}", "up:host-gateway"'
    config = f'unikernel = "{GUESTS}/net.spt"\nargs = ["--hosts={{hosts}}", "--ntp={{ntp}}", {ADDRESSES}]\n'
    config += f'extra_hosts = [{hosts}]\nntp = ["${{attr.unique.network.ip-address}}"]'
    [alloc] = jobs.run(hcl("hosts", config))
    about = inspect(alloc.name())
    gateway = about["nics"][0]["gateway4"]
    named = ["db=192.0.2.7", "db=2001:db8::7", f"node={NODE_ADDRESS}", f"up={gateway}"]
    assert about["hosts"] == named
    assert f"--hosts={','.join(named)} --ntp={NODE_ADDRESS}" in unit_property(alloc.unit(), "ExecStart")
