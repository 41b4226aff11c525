"""Names of machines with their addresses."""

from ipaddress import IPv4Address, IPv6Address

import pytest

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.resolver import HOSTS_MAX, Host, host, hosts


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
