"""Name servers, search domains and hosts that guests cannot use: refused in a setting, skipped in resolv.conf."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.resolver import (
    HOSTS_MAX,
    SEARCH_MAX,
    SERVERS_MAX,
    UNSET,
    Host,
    Resolver,
    host,
    hostname,
    hosts,
    parse_resolv_conf,
    reachable,
    resolver,
    without,
)

QUAD9 = IPv4Address("9.9.9.9")
INNER = IPv4Address("192.0.2.53")


def test_servers_and_domains_keep_their_order_and_appear_once() -> None:
    assert resolver(["9.9.9.9", "192.0.2.53", "9.9.9.9"], ["b.example", "a.example."]) == Resolver(
        servers=(QUAD9, INNER), search=("b.example", "a.example")
    )


def test_what_a_resolver_does_not_set_is_anothers() -> None:
    servers, search = Resolver(servers=(QUAD9,)), Resolver(search=("lan",))
    assert servers | search == Resolver(servers=(QUAD9,), search=("lan",))
    assert servers | Resolver(servers=(INNER,)) == servers
    assert UNSET | UNSET == UNSET


@pytest.mark.parametrize(
    "text",
    [
        *("", "; rm -rf /", "9.9.9.9\n", "9.9.9.9\nsearch x", "fe80::1%" + "x" * 1_000_000, "9" * 1_000_000),
        *"9.9.9.9,1.1.1.1 9.9.9.9:53 dns.example.org ٩.9.9.9 127.0.0.53 0.0.0.0 224.0.0.251 255.255.255.255".split(),
        *"::1 :: ff02::fb fe80::1 ::ffff:9.9.9.9 2620:fe::fe%eth0".split(),
    ],
)
def test_server_that_no_guest_can_use_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolver([text], [])
    assert str(caught.value).startswith(
        f"name server {text[:80]!r} is not usable: expected the address of another machine, such as"
    )
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["example.org", "lan", "a-b.c_d", "_tcp.example", "x" * 63, ".".join(["a" * 49] * 5)])
def test_domain_names(text: str) -> None:
    assert resolver([], [text]).search == (text,)
    assert hostname(f"{text}.") == text


@pytest.mark.parametrize(
    "text",
    ["", ".", "a..b", "a..", ".a", "-a", "a-", "a b", "a\n", "a\x1b[2J", "é", "a,b", "x" * 64, "a." * 130, "a" * 10**6],
)
def test_what_is_no_domain_name_is_refused(text: str) -> None:
    for parse, what in ((lambda given: resolver([], [given]), "search domain"), (hostname, "host name")):
        with pytest.raises(InvalidRequestError, match=f"^{what} .* is not a domain name: expected labels") as caught:
            parse(text)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 600


def test_thousands_are_refused_before_one_is_read() -> None:
    with pytest.raises(InvalidRequestError, match="there are 10000 name servers: expected at most 8"):
        resolver(["; rm"] * 10_000, [])
    with pytest.raises(InvalidRequestError, match="there are 10000 search domains: expected at most 6"):
        resolver([], ["-"] * 10_000)
    servers = [f"10.0.0.{i}" for i in range(SERVERS_MAX)]
    assert len(resolver(servers, [f"d{i}" for i in range(SEARCH_MAX)]).servers) == SERVERS_MAX


# --- resolv.conf -------------------------------------------------------------------------------------------------


def test_resolv_conf_has_servers_and_the_last_search_line() -> None:
    text = (
        "# by hand\n; too\nnameserver 9.9.9.9\nnameserver\t192.0.2.53 # inner\nnameserver 9.9.9.9\n"
        "domain old.example\nsearch example.org. lan .\noptions ndots:2\n"
    )
    assert parse_resolv_conf(text) == (Resolver(servers=(QUAD9, INNER), search=("example.org", "lan")), False)


@pytest.mark.parametrize("stub", ["127.0.0.53", "127.0.0.54"])
def test_stub_of_resolved_is_recognised_and_no_server(stub: str) -> None:
    assert parse_resolv_conf(f"nameserver {stub}\n") == (UNSET, True)


@pytest.mark.parametrize(
    "line",
    [
        "nameserver",
        "nameserver ",
        "nameserver 127.0.0.1",
        "nameserver ::1",
        "nameserver fe80::1%eth0",
        "nameserver 0.0.0.0",
        "nameserver 300.1.1.1",
        "nameserver=9.9.9.9",
        "NAMESERVER 9.9.9.9",
        "search -bad- \x1b[2J a..b " + "x" * 300,
        "search",
        "\0\0\0",
    ],
)
def test_line_of_no_use_is_skipped(line: str) -> None:
    assert parse_resolv_conf(line) == (UNSET, False)
    assert parse_resolv_conf(f"{line}\nnameserver 9.9.9.9\n") == (Resolver(servers=(QUAD9,)), False)


def test_resolv_conf_of_thousands_of_lines_is_cut() -> None:
    lines = [f"nameserver 10.0.{i // 250}.{i % 250}" for i in range(10_000)]
    found, _ = parse_resolv_conf("\n".join([*lines, "search " + " ".join(f"d{i}" for i in range(1000))]))
    assert (len(found.servers), found.servers[0], len(found.search)) == (
        SERVERS_MAX,
        IPv4Address("10.0.0.0"),
        SEARCH_MAX,
    )


@given(st.text(max_size=500))
def test_any_resolv_conf_is_read(text: str) -> None:
    found, _ = parse_resolv_conf(text)
    assert resolver(map(str, found.servers), found.search) == found


def test_a_guest_has_the_servers_of_the_versions_that_it_has_addresses_of() -> None:
    six = IPv6Address("2620:fe::fe")
    both = resolver(["2620:fe::fe", "9.9.9.9"], ["lan"])
    assert both.servers == (six, QUAD9)
    assert parse_resolv_conf("nameserver 2620:fe::fe\nnameserver 9.9.9.9\nsearch lan\n") == (both, False)
    assert reachable(both, {4, 6}) == both
    assert reachable(both, {4}) == Resolver(servers=(QUAD9,), search=("lan",))
    assert reachable(UNSET, {4}) == UNSET
    with pytest.raises(InvalidRequestError, match="name servers 2620:fe::fe have IPv6 addresses only, and no network"):
        reachable(Resolver(servers=(six,)), {4})
    assert reachable(both, {6}) == Resolver(servers=(six,), search=("lan",))
    with pytest.raises(InvalidRequestError, match=r"name servers 9\.9\.9\.9 have IPv4 addresses only, and no network"):
        reachable(Resolver(servers=(QUAD9,)), {6})


def test_servers_in_closed_networks_are_left_out() -> None:
    found = Resolver(servers=(IPv4Address("169.254.169.254"), QUAD9), search=("lan",))
    closed: list[IPv4Network | IPv6Network] = [IPv4Network("169.254.0.0/16"), IPv6Network("2620:fe::/48")]
    assert without(found, closed) == Resolver(servers=(QUAD9,), search=("lan",))
    assert without(found, []) == found


@pytest.mark.parametrize(
    ("text", "name", "address"),
    [
        ("db:192.0.2.7", "db", IPv4Address("192.0.2.7")),
        ("db.example.org.:192.0.2.7", "db.example.org", IPv4Address("192.0.2.7")),
        ("db:2001:db8::7", "db", IPv6Address("2001:db8::7")),
        ("db:[2001:db8::7]", "db", IPv6Address("2001:db8::7")),
        ("proxy:host-gateway", "proxy", None),
    ],
)
def test_a_host_is_a_name_and_an_address(text: str, name: str, address: IPv4Address | IPv6Address | None) -> None:
    assert host(text) == Host(name=name, address=address)
    assert host(str(host(text))) == host(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "db", "db:", ":192.0.2.7", "db=192.0.2.7", "db:127.0.0.1", "db:::1", "db:0.0.0.0", "db:224.0.0.1",
        "db:fe80::1", "db:example.org", "a b:192.0.2.7", "a,b:192.0.2.7", "a=b:192.0.2.7", "{dns}:192.0.2.7",
        "db:192.0.2.7,x=1", "db:192.0.2.7 --evil", "db\n:192.0.2.7", "db:host-gateway ", "db:[192.0.2.7",
    ],
)  # fmt: skip
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"(host|host name) .* is not (usable|a domain name): expected"):
        host(text)


def test_one_name_can_have_several_addresses_and_each_counts_once() -> None:
    given = ["db:192.0.2.7", "db:2001:db8::7", "db:192.0.2.7"]
    assert [*map(str, hosts(given))] == given[:2]
    most = [f"h{number}:192.0.2.7" for number in range(HOSTS_MAX)]
    assert len(hosts(most)) == HOSTS_MAX
    with pytest.raises(InvalidRequestError, match=f"there are {HOSTS_MAX + 1} hosts: expected at most {HOSTS_MAX}"):
        hosts([*most, "last:192.0.2.7"])
