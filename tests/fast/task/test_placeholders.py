from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fakes.tasks import LEASE, PORTS

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.network.model import Lease
from solo5_systemd.settings.network import NAMESPACE_NETWORK, NO_NETWORK
from solo5_systemd.settings.resolver import Resolver, hosts
from solo5_systemd.task.placeholders import COMMAND_LINE_MAX, expand, placeholders, used


def filled(arguments: Sequence[str], leases: Sequence[Lease]) -> tuple[str, ...]:
    return expand(arguments, placeholders(TaskName("web"), 64, leases), leases)


VALUES = placeholders(TaskName("web"), 64, [LEASE])
SERVERS = IPv4Address("9.9.9.9"), IPv4Address("192.0.2.53")
RESOLVER = Resolver(servers=SERVERS, search=("example.org", "lan"), ntp=SERVERS)
ALL = placeholders(
    TaskName("web"), 64, [LEASE], ports=PORTS, labels=[("http", 20080)], resolver=RESOLVER, hostname="shop"
)
SECOND = replace(LEASE, nic=DeviceName("admin"), ipv4=IPv4Interface("10.9.0.7/16"))
SIX = replace(LEASE, ipv6=IPv6Interface("fd00:1::7/64"), gateway6=IPv6Address("fd00:1::1"))
MIRAGE = ("--ipv4=10.89.0.2/24", "--ipv4-gateway=10.89.0.1")
MIRAGE6 = ("--ipv6=fd00:1::7/64", "--ipv6-gateway=fd00:1::1")


@pytest.mark.parametrize(
    "argument, expanded",
    [
        ("plain", "plain"),
        ("", ""),
        ("{name}", "web"),
        ("{memory_mib}", "64"),
        ("{hostname}", "shop"),
        ("{dns}", "9.9.9.9,192.0.2.53"),
        ("{ntp}", "9.9.9.9,192.0.2.53"),
        ("{dns.udp}", "udp:9.9.9.9,udp:192.0.2.53"),
        ("{dns.tcp}", "tcp:9.9.9.9,tcp:192.0.2.53"),
        ("{dns1}/{dns2}", "9.9.9.9/192.0.2.53"),
        ("--search={search}", "--search=example.org,lan"),
        ("{port.80/tcp}", "8080"),
        ("{port.53/udp}", "53"),
        ("{port.http}", "20080"),
        ("{net.service.ipv4}", "10.89.0.2"),
        ("{net.service.ipv4_cidr}", "10.89.0.2/24"),
        ("{net.service.prefix4}", "24"),
        ("{net.service.netmask4}", "255.255.255.0"),
        ("{net.service.gateway4}", "10.89.0.1"),
        ("{net.service.mac}", "02:00:5e:10:00:01"),
        ("{net.service.mtu}", "1500"),
        ("{net.service.network}", "default"),
        ("{net.service.tap}", "s5-1f00c0de"),
        ("--a={name}:{name}", "--a=web:web"),
        ("{{name}}", "{name}"),
        ("{{{name}}}", "{web}"),
        ('{{"a": {{}}}}', '{"a": {}}'),
    ],
)
def test_a_placeholder_is_filled_and_a_doubled_brace_stands_for_itself(argument: str, expanded: str) -> None:
    assert expand([argument], ALL) == (expanded,)


def test_a_guest_without_a_host_name_has_that_of_the_task() -> None:
    assert expand(["{hostname}"], VALUES) == ("web",)


def test_every_nic_has_placeholders_of_its_own() -> None:
    values = placeholders(TaskName("web"), 64, [LEASE, SECOND])
    assert expand(["{net.admin.ipv4_cidr}", "{net.service.ipv4}"], values) == ("10.9.0.7/16", "10.89.0.2")


def test_a_value_is_never_expanded_again() -> None:
    assert expand(["{a}"], {"a": "{b}", "b": "no"}) == ("{b}",)


@pytest.mark.parametrize("argument", ["{", "}", "{}", "{nam}", "{net.other.ipv4}", "{name", "a}b", "{name }"])
def test_what_is_no_placeholder_is_refused_with_those_that_are(argument: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected one of .*{name}.*Double the braces") as caught:
        expand([argument], VALUES)
    assert repr(argument) in str(caught.value)


def test_the_line_may_be_as_long_as_a_tender_takes_and_no_longer() -> None:
    half = "x" * (COMMAND_LINE_MAX // 2)
    assert expand([half, half], VALUES)  # with the blank in between: the limit itself
    with pytest.raises(InvalidRequestError, match="are 8192 bytes long: expected at most 8191"):
        expand([half, half + "x"], VALUES)
    with pytest.raises(InvalidRequestError, match="are 8192 bytes"):
        expand(["ä" * 4096], VALUES)
    with pytest.raises(InvalidRequestError, match="expected at most 8191"):
        expand(["{mirage}", "x" * (COMMAND_LINE_MAX - 10)], ALL, [LEASE])
    with pytest.raises(InvalidRequestError, match="NUL"):
        expand(["a\0b"], VALUES)


@given(st.text(max_size=200).filter(lambda text: "\0" not in text))
def test_any_text_with_its_braces_doubled_reaches_the_guest_as_it_is(text: str) -> None:
    assert expand([text.replace("{", "{{").replace("}", "}}")], VALUES) == (text,)


def named(*texts: str, leases: Sequence[Lease] = (LEASE,)) -> tuple[str, ...]:
    return expand(["--hosts={hosts}"], placeholders(TaskName("web"), 64, leases, hosts=hosts(texts)))


def test_hosts_are_names_with_addresses() -> None:
    assert named("db:192.0.2.7", "db:2001:db8::7", "up:host-gateway") == (
        f"--hosts=db=192.0.2.7,db=2001:db8::7,up={LEASE.gateway4}",
    )
    six = replace(SIX, ipv4=None, gateway4=None)
    assert named("up:host-gateway", leases=[six]) == ("--hosts=up=fd00:1::1",)
    other = replace(LEASE, nic=DeviceName("other"), gateway4=IPv4Address("192.0.2.99"))
    assert named("up:host-gateway", leases=[other, LEASE]) == (f"--hosts=up={LEASE.gateway4}",), "of the primary NIC"


@pytest.mark.parametrize(
    ("leases", "words"),
    [((), "the guest has no NIC"), ((replace(LEASE, gateway4=None),), "NIC service has no gateway")],
)
def test_a_host_at_a_gateway_that_is_not_there_is_refused(leases: tuple[Lease, ...], words: str) -> None:
    assert named("db:192.0.2.7", leases=leases) == ("--hosts=db=192.0.2.7",)
    with pytest.raises(InvalidRequestError, match=f"host up:host-gateway is for the guest's gateway, and {words}"):
        named("up:host-gateway", leases=leases)


def test_hosts_and_ntp_servers_that_nothing_sets_are_refused_with_what_to_set() -> None:
    with pytest.raises(InvalidRequestError, match="there is no NTP server: expected one or more in the job.*--ntp"):
        expand(["{ntp}"], VALUES)
    with pytest.raises(InvalidRequestError, match="there is no host: expected one or more in the job.*--add-host"):
        named()
    assert [used([each]) for each in ("a={hosts}", "{{hosts}}", "hosts")] == [{"hosts"}, set(), set()]


def test_port_is_the_first_of_the_host_ports_that_lead_to_it() -> None:
    again = [*PORTS, replace(PORTS[0], host_port=9090)]
    assert placeholders(TaskName("web"), 64, [LEASE], ports=again)["port.80/tcp"] == "8080"


@pytest.mark.parametrize(
    "argument, values, words",
    [
        ("{dns}", VALUES, "has {dns}, and there is no name server: expected name servers that guests can use"),
        ("-r{dns1}", VALUES, 'Set dns = ["9.9.9.9"] in [network.NAME] of /etc/solo5, --dns of solo5ctl run, or'),
        ("{dns}", VALUES, 'network { dns { servers = ["9.9.9.9"] } } in the job.'),
        ("{dns3}", ALL, "has {dns3}, and the last name server is {dns2}: expected name servers that guests can use"),
        ("{dns.tls}", ALL, "unknown placeholder '{dns.tls}'"),
        ("{search}", VALUES, "has {search}, and there is no search domain: expected one in the job"),
        ("{search}", VALUES, 'Set search = ["example.org"] in [network.NAME] of /etc/solo5, --dns-search of'),
        ("{dns0}", ALL, "unknown placeholder '{dns0}'"),
        ("{port.81/tcp}", ALL, "unknown placeholder '{port.81/tcp}': expected one of"),
    ],
)
def test_what_is_not_known_is_refused_with_what_to_set(argument: str, values: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        expand([argument], values)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "leases", "expanded"),
    [
        ("-l {mirage} x", [SECOND, LEASE], ("-l", *MIRAGE, "x")),
        ("{mirage}", [SECOND], ("--ipv4=10.9.0.7/16", "--ipv4-gateway=10.89.0.1")),
        ("a {mirage} b", [], ("a", "b")),
        ("{mirage}", [replace(LEASE, ipv4=None, gateway4=None)], ()),
        ("{mirage}", [replace(LEASE, gateway4=None)], MIRAGE[:1]),
        ("{mirage}", [SIX], (*MIRAGE, *MIRAGE6)),
        ("{mirage}", [replace(SIX, ipv4=None, gateway4=None)], MIRAGE6),
        (
            "{mirage} {mirage.admin}",
            [LEASE, SECOND],
            (*MIRAGE, "--admin-ipv4=10.9.0.7/16", "--admin-ipv4-gateway=10.89.0.1"),
        ),
    ],
)
def test_mirage_stands_for_addresses_and_gateways_of_the_primary_or_named_nic(
    arguments: str, leases: list[Lease], expanded: tuple[str, ...]
) -> None:
    assert expand(arguments.split(), ALL, leases) == expanded


@pytest.mark.parametrize("argument", ["x{mirage}", "{mirage} ", "{mirage}{mirage}", "--a={mirage.service}"])
def test_mirage_within_an_argument_is_refused(argument: str) -> None:
    with pytest.raises(InvalidRequestError, match="within other text: expected it as an argument of its own") as caught:
        expand([argument], ALL, [LEASE])
    assert repr(argument) in str(caught.value)


def test_mirage_with_doubled_braces_and_of_an_absent_nic() -> None:
    assert expand(["{{mirage}}"], ALL, [LEASE]) == ("{mirage}",)
    with pytest.raises(InvalidRequestError, match="unknown placeholder '{mirage.other}': expected one of .*{mirage}"):
        expand(["{mirage.other}"], ALL, [LEASE])


def test_used_placeholders_are_those_in_single_braces() -> None:
    assert used(["{name}-{dns}", "{{search}}", "}", "{"]) == {"name", "dns"}
    assert used(["{dns2}", "{dns.udp}"]) == {"dns"}
    assert used(["{{dns}}", "{dns0}", "{dnsx}", "{search}"]) == {"dns0", "dnsx", "search"}


NONE = replace(LEASE, ipv4=None, gateway4=None)
ALONE = replace(SIX, ipv4=None, gateway4=None)
GUEST_OF_NAMESPACE = replace(SIX, gateway6=None, network=NAMESPACE_NETWORK)
IPV4 = ("ipv4", "ipv4_cidr", "prefix4", "netmask4", "gateway4")
IPV6 = ("ipv6", "ipv6_cidr", "prefix6", "gateway6")


@pytest.mark.parametrize(
    ("key", "lease", "has"),
    [
        *((key, NONE, LEASE) for key in IPV4),
        *((key, LEASE, SIX) for key in IPV6),
        ("gateway4", replace(LEASE, gateway4=None), LEASE),
        ("gateway6", replace(SIX, gateway6=None), SIX),
    ],
)
def test_an_address_that_a_nic_does_not_have_is_refused_in_one_sentence(key: str, lease: Lease, has: Lease) -> None:
    argument = f"-a={{net.service.{key}}}"
    sentence = (
        f"argument '{argument}' has {{net.service.{key}}}, and NIC service has no .* in network default: expected"
    )
    with pytest.raises(InvalidRequestError, match=sentence):
        filled(["plain", argument], [lease])
    assert filled(["{net.service.mac}", "{{net.service.ipv4}}"], [lease])[1] == "{net.service.ipv4}"
    assert "{" not in filled([argument], [has])[0]


@pytest.mark.parametrize(
    ("key", "lease", "lack", "hint"),
    [
        ("ipv4", NONE, "leased address", "Set network.default.ipv4 in /etc/solo5, or have the guest use DHCP."),
        ("gateway4", replace(LEASE, gateway4=None), "gateway", "Set network.default.gateway4 in /etc/solo5, or have"),
        ("gateway4", replace(NONE, network=NO_NETWORK), "leased address", "Connect the NIC to another network."),
        ("ipv6", LEASE, "leased IPv6 address", "Set network.default.ipv6 = true in /etc/solo5."),
        ("gateway6", GUEST_OF_NAMESPACE, "IPv6 gateway", "A guest has IPv6 where the interface of its network"),
        ("ipv4", ALONE, "leased IPv4 address", "Use those of IPv6, such as {net.service.ipv6_cidr}."),
    ],
)
def test_what_lacks_and_what_to_do_depends_on_the_network(key: str, lease: Lease, lack: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"NIC service has no {lack} in network {lease.network}: ") as raised:
        filled([f"{{net.service.{key}}}"], [lease])
    assert raised.value.hint.startswith(hint)


def test_ipv6_of_a_nic_has_placeholders_where_its_network_has_it() -> None:
    arguments = [f"{{net.service.{key}}}" for key in IPV6]
    assert filled(arguments, [SIX]) == ("fd00:1::7", "fd00:1::7/64", "64", "fd00:1::1")
