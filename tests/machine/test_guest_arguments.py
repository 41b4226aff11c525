"""What a guest must know reaches it among its arguments: addresses, name servers, host name, published ports."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Files, Machine, Outside, Runner, eventually, inspect, ok, says

RESOLV_CONF = Path("/etc/resolv.conf")


def guest_arguments(*words: str) -> list[str]:
    """Return the arguments of the guest in the plan of `solo5ctl run`."""
    argv = json.loads(ok("solo5ctl", "run", "--dry-run", "--json", *words))["argv"]
    return list(argv[argv.index("--") + 2 :])


@pytest.fixture
def resolv_conf(machine: Machine) -> Iterator[Path]:
    """/etc/resolv.conf, replaced by a file of the test."""
    kept = RESOLV_CONF.with_name("resolv.conf.kept")
    if os.path.lexists(RESOLV_CONF):
        RESOLV_CONF.rename(kept)
    RESOLV_CONF.write_text("nameserver 192.0.2.1\nsearch host.example\n")
    yield RESOLV_CONF
    RESOLV_CONF.unlink()
    if os.path.lexists(kept):
        kept.rename(RESOLV_CONF)


def test_guest_has_its_address_name_servers_and_published_port(run: Runner, outside: Outside) -> None:
    options = ("--publish", "8080:80", "--dns", "192.0.2.53", "--dns", "192.0.2.54", "--dns-search", "lan")
    arguments = ("{mirage}", "--dns-servers={dns.udp}", "--search={search}", "--name={hostname}", "--at={port.80/tcp}")
    name = run("net.spt", *arguments, name="knowing", options=(*options, "--hostname", "shop"))
    seen = inspect(name)
    [nic] = seen["nics"]
    assert (seen["hostname"], seen["dns"], seen["dns_search"]) == ("shop", ["192.0.2.53", "192.0.2.54"], ["lan"])
    text = ok("solo5ctl", "inspect", name)
    assert "192.0.2.53, 192.0.2.54" in text
    assert "shop" in text
    line = (
        f"--ipv4={nic['ipv4']} --ipv4-gateway={nic['gateway4']} --dns-servers=udp:192.0.2.53,udp:192.0.2.54 "
        "--search=lan --name=shop --at=8080"
    )
    eventually(lambda: line in outside.tcp(outside.here, 8080), "the guest has its arguments")


def test_name_servers_are_the_options_or_the_networks_or_the_hosts(resolv_conf: Path, place: Files) -> None:
    image, words = f"{GUESTS}/net.spt", ("{dns}", "{search}")
    assert guest_arguments(image, *words) == ["192.0.2.1", "host.example"]
    place("/etc/solo5/zz-guest-arguments.toml", '[network.default]\ndns = ["192.0.2.8"]\nsearch = ["net.example"]\n')
    assert guest_arguments(image, *words) == ["192.0.2.8", "net.example"]
    assert guest_arguments("--dns", "192.0.2.9", image, *words) == ["192.0.2.9", "net.example"]


def test_restart_by_systemd_keeps_the_arguments(run: Runner, resolv_conf: Path) -> None:
    name = run("net.spt", "--count=100", "{mirage}", "{dns}")
    says(name, "count 1")
    before = ok("systemctl", "show", "--property=ExecStart", "--value", f"solo5-task-{name}.service").partition(" ;")[0]
    resolv_conf.write_text("nameserver 192.0.2.77\n")
    ok("systemctl", "restart", f"solo5-task-{name}.service")
    after = ok("systemctl", "show", "--property=ExecStart", "--value", f"solo5-task-{name}.service").partition(" ;")[0]
    assert before == after
    assert inspect(name)["dns"] == ["192.0.2.1"]
