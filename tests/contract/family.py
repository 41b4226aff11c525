"""IPv4 or IPv6 of a test: addresses of the host, its neighbours and its guests, and how lists and tables have them."""

from dataclasses import dataclass
from ipaddress import ip_address

from tests.contract.guest import ICMP, IPV4, IPV6, Address, Guest
from tests.contract.netns import CLIENT6, HOST6
from tests.contract.netservice import until

from solo5_systemd.network.model import Lease

OUTSIDE = "192.0.2.2"


@dataclass(frozen=True)
class Family:
    """The family of a test, whose guest has the other one beside IPv6, too.

    Args:
        here: the address of the host at the link to its neighbour `wan`.
        far: the neighbour's.
        near: another address of their link.
        second: the address of a neighbour on another link, without its last number.
        metadata: addresses of metadata services.
    """

    table: str
    options: str
    here: str
    far: str
    near: str
    every: str
    link: str
    second: str
    metadata: tuple[str, ...]

    def settings(self, options: str = "") -> str:
        return f"[network.default]\n{self.options}{options}\n"

    def entry(self, of: object, rest: str = "") -> str:
        """Return an entry of a list: of an address or range, and ports or a protocol."""
        return f"{of}{rest}" if self is FOUR else f"[{of}]{rest}"

    def address(self, lease: Lease) -> str:
        return str(lease.address if self is FOUR else lease.address6)

    def own(self, guest: Guest) -> Address:
        return guest.own(ip_address(self.far))

    def router(self, guest: Guest) -> Address:
        return guest.router(ip_address(self.far))

    def protocol(self, frame: bytes) -> int:
        """Return the protocol of a packet of the family; 0 for any other frame."""
        ether, at = (IPV4, 23) if self is FOUR else (IPV6, 20)
        return frame[at] if frame[12:14] == ether.to_bytes(2) else 0

    def transport(self, frame: bytes) -> bytes:
        """Return what is behind the header of a packet."""
        return frame[34 if self is FOUR else 54 :]

    async def pinged(self, guest: Guest) -> None:
        """Wait for a reply of the gateway: it has processed all earlier packets."""
        if self is SIX:
            await guest.pinged6(guest.gateway6, b"ping")
        else:
            await until_pinged(guest)


FOUR = Family(
    "ip", "", "192.0.2.1", OUTSIDE, "192.0.2.5", "0.0.0.0/0", "192.0.2.0/24", "198.51.100.",
    ("169.254.169.254", "168.63.129.16", "100.100.100.200"),
)  # fmt: skip
SIX = Family(
    "ip6", "ipv6 = true\n", HOST6, CLIENT6, "2001:db8:f::5", "::/0", "2001:db8:f::/64", "2001:db8:e::",
    ("fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42"),
)  # fmt: skip
"""With the metadata services of several clouds."""


async def until_pinged(guest: Guest) -> None:
    """Wait for a reply of the gateway to a ping by IPv4: it has processed all earlier packets."""
    before = len(guest.frames)
    guest.send(guest.echo(await guest.resolve(guest.gateway), guest.gateway, 0))
    await until(lambda: any(f[23] == ICMP and f[34] == 0 for f in guest.frames[before:] if f[12:14] == b"\x08\0"), 60)
