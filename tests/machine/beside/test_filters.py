"""Packet filters of other programs: what they drop is what `solo5ctl doctor` has, and its command opens it for good."""

import pytest
from tests.machine.beside.conftest import WAYS, Guest, Program, doctor, on_the_node, remedy
from tests.machine.conftest import Files, Machine, Outside, Runner, address, eventually, heard, lease, ok, sh
from tests.machine.test_ipv6 import HERE, IPV6, THERE
from tests.machine.test_joined import SETTINGS
from tests.machine.test_network import GATEWAY, IPV4, web
from tests.support.doc_tables import DOCS

DOCKER = Program(
    "docker",
    first=["systemctl start docker"],
    again=["systemctl restart docker", "systemctl reload docker"],
    last=["systemctl stop docker.socket docker containerd"],
)
FIREWALLD = Program(
    "firewalld",
    first=["systemctl start firewalld"],
    again=["firewall-cmd --reload", "firewall-cmd --complete-reload", "systemctl restart firewalld"],
    last=["systemctl stop firewalld", "rm -f /etc/firewalld/zones/* /etc/firewalld/policies/*"],
)
UFW = Program(
    "ufw",
    first=["ufw --force enable"],
    again=["ufw reload", "/usr/lib/ufw/ufw-init restart", "systemctl restart ufw"],
    last=["ufw --force reset", "systemctl stop ufw", "systemctl disable ufw"],
)
IPTABLES = Program(
    "iptables",
    first=["iptables -P FORWARD DROP"],
    again=["iptables-save > /tmp/rules; iptables-restore /tmp/rules"],
    last=["iptables -P FORWARD ACCEPT"],
)
NFTABLES = Program(
    "nftables",
    first=["echo 'table inet own { chain own { type filter hook forward priority 5; policy drop; }; }' | nft -f -"],
    again=["nft list table inet own > /tmp/rules; nft delete table inet own; nft -f /tmp/rules"],
    last=[],
)
LEGACY = Program(
    "iptables-legacy",
    first=["iptables-legacy -P FORWARD DROP"],
    again=["iptables-legacy-save > /tmp/rules; iptables-legacy-restore /tmp/rules"],
    last=["iptables-legacy -P FORWARD ACCEPT; iptables-legacy -F"],
)
OPENED = Program(
    "iptables with rules for us",
    first=[
        "iptables -P FORWARD DROP",
        "iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "iptables -A FORWARD -m conntrack --ctstate DNAT -m comment --comment 'published ports' -j ACCEPT",
        "iptables -A FORWARD -i solo5-+ ! -o docker0 -j ACCEPT",
    ],
    again=["iptables-save > /tmp/rules; iptables-restore /tmp/rules"],
    last=["iptables -P FORWARD ACCEPT"],
)
KUBE_PROXY = Program(
    "rules as of kube-proxy",  # in its mode iptables, by its documentation: the program is not in Debian
    first=[
        "iptables -N KUBE-FORWARD; iptables -I FORWARD -m comment --comment 'kubernetes forwarding' -j KUBE-FORWARD",
        "iptables -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
        "iptables -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT",
        "iptables -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "iptables -N KUBE-FIREWALL; iptables -I INPUT -j KUBE-FIREWALL; iptables -I OUTPUT -j KUBE-FIREWALL",
        "iptables -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT "
        "-j DROP",
        "iptables -t nat -N KUBE-POSTROUTING; iptables -t nat -I POSTROUTING -j KUBE-POSTROUTING",
        "iptables -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
        "iptables -t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully",
    ],
    again=["iptables-save > /tmp/rules; iptables-restore /tmp/rules"],
    last=[],
)
DOCUMENTED = (DOCS / "network-host.md").read_text()
DAEMONS, COMMANDS = [DOCKER, FIREWALLD, UFW], [IPTABLES, NFTABLES, LEGACY, OPENED, KUBE_PROXY]
ORDERS = [*((program, "before") for program in (*DAEMONS, *COMMANDS)), *((program, "after") for program in DAEMONS)]
"""The kernel does not know in which order rules of other tables were added: a daemon may look at what is there."""


@pytest.mark.parametrize(("program", "order"), ORDERS, ids=[f"{order}-{program.name}" for program, order in ORDERS])
def test_what_doctor_advises_opens_all_ways_for_good(
    machine: Machine, outside: Outside, run: Runner, program: Program, order: str
) -> None:
    with program.ending():
        if order == "before":
            program.do(program.first)
        guest = Guest(run, outside)
        if order == "after":
            assert guest.ways() == WAYS
            program.do(program.first)
        ways = guest.ways()
        assert "from here" in ways
        assert (doctor()["verdict"] == "ok") == (ways == WAYS), doctor()
        if ways != WAYS:
            command = remedy()
            assert f"`{command}`" in DOCUMENTED or program in (NFTABLES, LEGACY)
            assert on_the_node().endswith(command)
            ok("sh", "-ec", command)
            assert guest.ways() == WAYS
        assert on_the_node() == ""
        for command in program.again if order == "before" else []:  # its rules are the same in both
            program.do([command])
            assert (guest.ways(), doctor()["verdict"]) == (WAYS, "ok"), command


IP6TABLES = Program(
    "ip6tables",
    first=["ip6tables -P FORWARD DROP"],
    again=["ip6tables-save > /tmp/rules; ip6tables-restore /tmp/rules"],
    last=["ip6tables -P FORWARD ACCEPT", "ip6tables -F FORWARD"],
)
OWN_INPUT = Program(
    "nftables without neighbour discovery",
    first=["echo 'table ip6 own { chain own { type filter hook input priority 5; policy drop; }; }' | nft -f -"],
    again=["nft list table ip6 own > /tmp/rules; nft delete table ip6 own; nft -f /tmp/rules"],
    last=["nft delete table ip6 own"],
)


@pytest.fixture
def six(outside: Outside, place: Files) -> None:
    """A network with IPv6, and a client of its published ports."""
    place(SETTINGS, "[network.default]\nipv6 = true\n")
    ok("ip", "address", "add", f"{HERE}/64", "dev", "cable", "nodad")
    outside.ok("ip", "address", "add", f"{THERE}/64", "dev", "eth0", "nodad")


@pytest.mark.usefixtures("six")
@pytest.mark.parametrize("program", [FIREWALLD, UFW, IP6TABLES, OWN_INPUT, DOCKER], ids=lambda program: program.name)
def test_what_doctor_advises_opens_ipv6_for_good(
    machine: Machine, outside: Outside, run: Runner, program: Program
) -> None:
    """By the host that finds the guest, and a client that reaches its published port."""
    name = run("net.hvt", IPV4, GATEWAY, *IPV6, options=("-p", "5307:7/udp"))
    guest = str(lease(name)["ipv6"]).partition("/")[0]

    def is_open() -> bool:
        ok("ip", "-6", "neigh", "flush", "dev", "solo5-default")
        ping = sh("ping", "-6", "-c2", "-W2", guest).returncode == 0
        return ping and outside.udp(HERE, 5307, "hello") == "hello"

    eventually(is_open, f"{name} is reached by IPv6")
    with program.ending():
        program.do(program.first)
        assert doctor()["verdict"] == "limited"
        ok("sh", "-ec", remedy())
        assert (doctor()["verdict"], is_open()) == ("ok", True), doctor()
        for command in program.again:
            program.do([command])
            assert (doctor()["verdict"], is_open()) == ("ok", True), command


@pytest.fixture
def routed(outside: Outside, place: Files) -> None:
    """A network whose guests have no port published, and are reached at their own addresses."""
    place(SETTINGS, "[network.default]\nrouted = true\n")


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize("program", [DOCKER, FIREWALLD, UFW, IPTABLES, OPENED], ids=lambda program: program.name)
def test_what_doctor_advises_opens_the_addresses_of_a_routed_network_for_good(
    machine: Machine, outside: Outside, run: Runner, program: Program
) -> None:
    """Rules for published ports alone are not enough."""
    with program.ending():
        program.do(program.first)
        guest = address(web(run))
        outside.ok("ip", "route", "replace", guest, "via", outside.here)

        def is_open() -> bool:
            return "200 OK" in outside.sh("curl", "-si", "--max-time", "2", f"http://{guest}/").stdout

        assert (doctor()["verdict"], is_open()) == ("limited", False), doctor()
        ok("sh", "-ec", remedy())
        eventually(is_open, "the guest answers")
        for command in ("true", *program.again):
            program.do([command])
            assert (doctor()["verdict"], is_open()) == ("ok", True), command


@pytest.fixture
def served(cleared: None, place: Files) -> str:
    """The gateway of a network whose guests may send to UDP port 9999 of the host."""
    place(SETTINGS, '[network.default]\nipv4 = "10.99.0.0/24"\nhost = ["9999/udp"]\n')
    return "10.99.0.1"


@pytest.mark.parametrize("program", [UFW, FIREWALLD], ids=lambda program: program.name)
def test_a_service_of_the_host_that_a_network_opens_is_opened_there_as_well(
    machine: Machine, served: str, run: Runner, program: Program
) -> None:
    with program.ending():
        program.do(program.first)
        web(run, f"--send={served}:9999")
        assert heard(served, 9999, 2) == ""
        ok("sh", "-ec", remedy())
        eventually(lambda: heard(served, 9999, 2).startswith("10.99.0."), "datagrams of the guest arrive")
        assert doctor()["verdict"] == "ok"
