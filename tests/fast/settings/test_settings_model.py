import tomllib
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Address, IPv6Network

import pytest

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import SettingsError
from solo5_systemd.base.names import NetworkName
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.network import DEFAULT_NETWORK, NO_NETWORK, default_mtu
from solo5_systemd.settings.network_policy import CLOSED, Join, Network, NetworkPolicy
from solo5_systemd.settings.rate import UNLIMITED, rate
from solo5_systemd.settings.records import document, record
from solo5_systemd.settings.resolver import UNSET, resolver
from solo5_systemd.settings.solo5_toml import Settings, check_reach, of_namespace, parse_settings

DEFAULT = Network(name=NetworkName("default"), bridge="solo5-default")


def parse(text: str) -> Settings:
    return parse_settings(tomllib.loads(text), "/etc/solo5/x.toml")


def test_nothing_at_all_is_a_complete_configuration() -> None:
    assert parse("") == Settings(networks=(DEFAULT,))


def test_a_further_network_leaves_the_default_as_it_is() -> None:
    read = parse('[network.lab]\nmtu = 9000\nmasquerade = false\nbridge = "lab0"\n')
    assert [network.name for network in read.networks] == ["default", "lab"]
    lab = read.network(NetworkName("lab"))
    assert lab == Network(name=NetworkName("lab"), bridge="lab0", mtu=9000, masquerade=False)
    assert read.network(NetworkName("other")) is None


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "tender_path = []",
            "tender_path is not a known key: expected one of disk_copy_mb, disk_quota_mb, image_store_mb, "
            "limits, log_namespace, network, reserved_ports, task_uids, tender_paths.",
        ),
        ('disk_quota_mb = { "srv" = 1 }', "disk_quota_mb has the key 'srv': expected the absolute path of a directory"),
        ('disk_quota_mb = { "/srv/" = 1 }', "disk_quota_mb has the key '/srv/'"),
        ('disk_quota_mb = { "/srv/../etc" = 1 }', "disk_quota_mb has the key '/srv/../etc'"),
        ('disk_quota_mb = { "/srv" = -1 }', "disk_quota_mb./srv is -1: expected a whole number from 0 to 1073741824."),
        ("disk_quota_mb = 5", "disk_quota_mb is 5: expected a table of named values."),
        ('task_uids = "70000"', "task_uids: '70000' is not a range of user IDs: expected"),
        ('task_uids = "61300-61200"', "task_uids: '61300-61200' is not a range of user IDs"),
        (
            'task_uids = "61183-61200"',
            "task_uids: '61183-61200' is not a range of user IDs: expected two numbers within 61184-65519",
        ),
        ('task_uids = "65519-65520"', "task_uids: '65519-65520' is not a range of user IDs"),
        ("image_store_mb = 0", "image_store_mb is 0: expected a whole number from 1 to 1073741824."),
        ('log_namespace = "a/b"', "log_namespace: journal namespace 'a/b' is not usable: expected 1 to 64 letters"),
        ("tender_paths = []", "tender_paths is []: expected one or more absolute directories."),
        ('tender_paths = ["bin"]', "tender_paths is ['bin']: expected one or more absolute directories."),
        ("network = 1", "network is 1: expected a table of named values."),
        ("[network.default]\nip = 1", "network.default.ip is not a known key"),
        ('[network."a b"]', "network.a b: network name 'a b' is not usable"),
        ("network.default.mtu = 67", "network.default.mtu is 67: expected a whole number from 68 to 65521."),
        ("network.default.mtu = 65522", "network.default.mtu is 65522"),
        ("network.default.masquerade = 1", "network.default.masquerade is 1: expected true or false."),
        ('network.default.reach = ["a b"]', "network.default.reach: network name 'a b' is not usable"),
        ('network.default.host = ["53"]', "network.default.host: '53' is not a port of the host: expected one such as"),
        ('network.default.host = ["65536/tcp"]', "network.default.host: '65536/tcp' is not a port"),
        ("network.default.connections = 0", "network.default.connections is 0: expected a whole number from 16 to"),
        ('network.default.dns = ["::1"]', "network.default.dns: name server '::1' is not usable: expected"),
        ('network.default.search = ["a b"]', "network.default.search: search domain 'a b' is not a domain name"),
        (
            f"network.default.dns = {['9.9.9.9'] * 10_000}",
            "network.default.dns: there are 10000 name servers: expected at most 8.",
        ),
        ("reserved_ports = 22", "reserved_ports is 22: expected ports from 1 to 65535 and ranges of them"),
        ('reserved_ports = ["9-8"]', "reserved_ports is '9-8': expected ports"),
        ("reserved_ports = [true]", "reserved_ports is true: expected ports"),
        ("reserved_ports = [65536]", "reserved_ports is 65536: expected ports"),
        ('network.default.bridge = "a/b"', "network.default.bridge is 'a/b': expected a link name"),
        ('network.default.bridge = ".."', "network.default.bridge is '..': expected a link name"),
        ('network.default.ipv4 = "10.0.0.1/24"', "network.default.ipv4: '10.0.0.1/24' is an address with its"),
        ('network.default.ipv4 = "fd00::/64"', "network.default.ipv4: "),
        (
            'network.default.ipv4 = "10.0.0.0/31"',
            "network.default.ipv4 is '10.0.0.0/31': expected a prefix of at most 30",
        ),
        ('network.default.gateway4 = "10.0.0.1"', "network.default.gateway4 is '10.0.0.1': expected a host address"),
        (
            '[network.default]\nipv4 = "10.0.0.0/30"\ngateway4 = "10.0.1.1"',
            "network.default.gateway4 is '10.0.1.1': expected a host address inside the network's ipv4 range.",
        ),
        ('[network.default]\nipv4 = "10.0.0.0/30"\ngateway4 = "10.0.0.0"', "network.default.gateway4 is '10.0.0.0'"),
        ('[network.default]\nipv4 = "10.0.0.0/30"\ngateway4 = "10.0.0.3"', "network.default.gateway4 is '10.0.0.3'"),
        (
            '[network.a]\nbridge = "solo5-default"',
            "network.a.bridge is 'solo5-default', as network.default's: expected a bridge of its own",
        ),
        (
            '[network.a]\nipv4 = "10.0.0.0/8"\n[network.b]\nipv4 = "10.1.0.0/16"',
            "network.b.ipv4 is 10.1.0.0/16, which overlaps network.a's 10.0.0.0/8: expected a range of its own.",
        ),
        ('[network.lan]\njoin = "a/b"', "network.lan.join is 'a/b': expected a link name"),
        ("[network.lan]\nvlan = 20", "network.lan.vlan is set without join"),
        ('[network.lan]\npool = "a"', "network.lan.pool is set without join"),
        ('[network.a]\njoin = "br0"\n[network.b]\njoin = "br0"', "network.b.join is 'br0', as network.a's"),
        ('[network.a]\nbridge = "br0"\n[network.b]\njoin = "br0"', "network.b.join is 'br0', as network.a's"),
        (
            '[network.a]\njoin = "br0"\nipv4 = "10.0.0.0/24"\n[network.b]\nipv4 = "10.0.0.0/16"',
            "network.b.ipv4 is 10.0.0.0/16, which overlaps network.a's",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"/etc/solo5/x.toml: {words}")


def test_without_a_file_the_message_begins_with_the_key() -> None:
    with pytest.raises(SettingsError, match="^mtu is not a known key"):
        parse_settings({"mtu": 1})


def test_a_long_name_has_a_bridge_whose_name_fits_and_stays() -> None:
    bridges = [network.bridge for network in parse("[network.management]\n[network.manageress]\n").networks]
    assert len({*bridges}) == len(bridges)
    assert all(len(bridge) <= 15 for bridge in bridges)


def test_a_policy_is_read_and_written() -> None:
    read = parse(
        '[network.a]\nrouted = true\nreach = ["b"]\nisolated = true\nhost = ["53/udp", "8080/tcp"]\n'
        "metadata = true\nconnections = 16\nfragments = true\n[network.b]\n"
    )
    a, b = read.networks[1:]
    host = ("53/udp", "8080/tcp")
    opened = NetworkPolicy(
        routed=True,
        reach=(NetworkName("b"),),
        isolated=True,
        host=host,
        metadata=True,
        connections=16,
        fragments=True,
    )
    assert (a.policy, b.policy) == (opened, CLOSED)
    for policy in (opened, CLOSED):
        assert record(NetworkPolicy, Fields(document(policy, complete=True))) == policy
    check_reach(read)


def test_name_servers_of_a_network() -> None:
    read = parse('[network.lab]\ndns = ["9.9.9.9", "9.9.9.9"]\nsearch = ["lan.", "lan"]\n')
    assert read.networks[1].resolver == resolver(["9.9.9.9"], ["lan"])
    assert read.networks[0].resolver == UNSET


@pytest.mark.parametrize("name", ["c", "a", "lan"])
def test_a_network_reaches_others_that_exist(name: str) -> None:
    with pytest.raises(SettingsError, match=f"network.a.reach names '{name}': expected the names of other networks"):
        check_reach(parse(f'[network.a]\nreach = ["{name}"]\n[network.lan]\njoin = "br0"\n'))


def test_a_network_joins_a_bridge_of_others() -> None:
    lan = parse('[network.lan]\njoin = "br0"\nisolated = true\nfragments = true\nipv6 = true\n').networks[1]
    assert (lan.bridge, lan.ipv4, lan.gateway4, lan.masquerade) == ("br0", None, None, False)
    assert (lan.join, lan.policy) == (Join(ipv6=True), NetworkPolicy(isolated=True, fragments=True))
    two = parse('[network.a]\njoin = "br0"\n[network.b]\njoin = "br0"\nvlan = 20\n').networks[1:]
    assert [network.join and network.join.vlan for network in two] == [0, 20]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            (
                f"{key} = {value}",
                rf"network\.lan\.{key} is set as well as join: expected one of join, vlan, pool, pool6",
            )
            for key, value in (("bridge", '"x"'), ("mtu", "1500"), ("masquerade", "true"), ("reach", "[]"))
        ),
        ("vlan = 0", r"network\.lan\.vlan is 0: expected a whole number from 1 to 4094"),
        ("vlan = 4095", r"network\.lan\.vlan is 4095"),
        ('ipv4 = "192.168.1.0/31"', "expected a prefix of at most 30"),
        ('gateway4 = "192.168.1.1"', "a host address inside the network's ipv4 range"),
        ('pool = "192.168.1.2-192.168.1.3"', "network.lan.pool is .*: expected host addresses inside"),
        ('ipv4 = "192.168.1.0/24"\npool = "192.168.1.2-192.168.2.3"', "expected host addresses inside"),
        ('ipv4 = "192.168.1.0/24"\npool = "192.168.1.9-192.168.1.3"', "is not a range of addresses"),
        ('pool = "192.168.1"', "'192.168.1' is not a range of addresses"),
        (
            'ipv4 = "192.168.1.0/24"\npool = "192.168.1.1-192.168.1.9"\ngateway4 = "192.168.1.5"',
            "a pool without the gateway, 192.168.1.5",
        ),
    ],
)
def test_what_a_joined_network_cannot_have_is_refused_by_its_key(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse(f'[network.lan]\njoin = "br0"\n{text}\n')


def test_a_namespace_has_one_network_with_the_filter_of_the_default_one() -> None:
    policy = NetworkPolicy(routed=True, isolated=True, metadata=True, connections=9)
    host = Settings(networks=(Network(name=DEFAULT_NETWORK, bridge="b", mtu=1400, policy=policy),))
    [network] = of_namespace(host, 1380).networks
    assert (network.name, network.bridge, network.mtu, network.shared) == ("namespace", "solo5-namespace", 1380, True)
    assert network.policy == NetworkPolicy(metadata=True, connections=9)
    assert of_namespace(host, None).networks[0].mtu == 1400
    assert of_namespace(Settings(), 9000).networks[0].mtu == 1500


def test_a_namespace_with_ipv6_has_a_network_with_ipv6() -> None:
    """Whatever the network `default` has, unless the operator denies it or sets an MTU that IPv6 cannot have."""
    for text in ("", "[network.default]\nipv6 = true\nra = true\n", "[network.namespace]\nipv6 = true\n"):
        [network] = of_namespace(parse(text), 1500, ipv6=True).networks
        assert (network.has_ipv6, network.ipv6, network.nat66, network.ra) == (True, None, True, False)
        assert not of_namespace(parse(text), 1500).networks[0].has_ipv6
    own = parse('[network.namespace]\nipv6 = "fd00:1::/64"\ngateway6 = "fd00:1::5"\n')
    prefix, gateway = IPv6Network("fd00:1::/64"), IPv6Address("fd00:1::5")
    [network] = of_namespace(own, 1500, ipv6=True).networks
    assert (network.has_ipv6, network.ipv6, network.gateway6) == (True, prefix, gateway)
    [network] = of_namespace(own, 1500).networks
    assert (network.has_ipv6, network.ipv6, network.gateway6) == (False, None, None)
    for text in ("[network.namespace]\nipv6 = false\n", "[network.namespace]\nmtu = 1000\n"):
        assert not of_namespace(parse(text), 1500, ipv6=True).networks[0].has_ipv6


def test_the_operator_sets_the_network_of_namespaces() -> None:
    own = '[network.namespace]\nipv4 = "10.0.0.0/24"\nmtu = 1400\nisolated = true\n'
    host = parse(own + '[network.a]\nipv6 = "fd00:2::/64"\n[network.b]\nipv4 = "10.1.0.0/24"\nipv6 = true\n')
    [network] = of_namespace(host, 9000).networks
    assert (network.ipv4, network.mtu, network.shared) == (IPv4Network("10.0.0.0/24"), 1400, True)
    assert network.policy == NetworkPolicy(isolated=True)
    assert host.ranges == [IPv6Network("fd00:2::/64"), IPv4Network("10.1.0.0/24")]


FILTERED = (
    "[network.default]\nmtu = 1400\nmetadata = true\nconnections = 64\nfragments = true\nisolated = true\n"
    'egress = ["10.0.0.0/8"]\nrate = ["sent=10M"]\nrouted = true\nhost = ["53/udp"]\ndhcp = true\n'
    'ipv4 = "10.9.0.0/24"\n'
)
INHERITED = NetworkPolicy(
    metadata=True, connections=64, fragments=True, egress=egress(["10.0.0.0/8"]), rate=rate(["sent=10M"])
)


def test_the_network_of_namespaces_inherits_the_packet_filter_of_the_default_key_by_key() -> None:
    for text in ("", "[network.namespace]\n"):
        [network] = of_namespace(parse(FILTERED + text), 1500).networks
        assert (network.mtu, network.ipv4, network.policy) == (1400, None, INHERITED)
    own = "[network.namespace]\nmtu = 1300\nmetadata = false\nconnections = 128\nrate = []\n"
    [network] = of_namespace(parse(FILTERED + own), 1500).networks
    expected = replace(INHERITED, metadata=False, connections=128, rate=UNLIMITED)
    assert (network.mtu, network.policy) == (1300, expected)
    own = "[network.namespace]\nisolated = true\nfragments = false\negress = []\n"
    [network] = of_namespace(parse(own + FILTERED), 1500).networks
    assert network.policy == replace(INHERITED, isolated=True, fragments=False, egress=egress([]))


@pytest.mark.parametrize(
    "option",
    [
        "routed = true", 'reach = ["default"]', 'host = ["53/udp"]', "dhcp = true",
        "masquerade = false", "nat66 = false", "ra = true", 'bridge = "br0"', 'join = "br0"', "vlan = 20",
        "redirect = true",
    ],
)  # fmt: skip
def test_a_key_without_an_effect_in_namespaces_is_refused(option: str) -> None:
    key = option.partition(" ")[0]
    with pytest.raises(
        SettingsError, match=rf"network\.namespace\.{key} has no effect: expected one of ipv4, gateway4"
    ):
        parse(f"[network.namespace]\n{option}\n")


def test_the_network_none_cannot_be_defined() -> None:
    nowhere = parse("").network(NO_NETWORK)
    assert nowhere is not None
    assert nowhere.without_ipv4
    with pytest.raises(SettingsError, match="network.none cannot be defined.*connected to nothing"):
        parse("[network.none]\n")


def test_a_network_without_an_mtu_has_that_of_the_uplink() -> None:
    assert parse("").networks[0].mtu == 0
    assert [parse(f"network.default.mtu = {mtu}").networks[0].mtu for mtu in (68, 65521)] == [68, 65521]
    assert [default_mtu(uplink) for uplink in (None, 1420, 1500, 9000, 1200)] == [1500, 1420, 1500, 1500, 1200]
    assert default_mtu(1200, ipv6=True) == 1280
