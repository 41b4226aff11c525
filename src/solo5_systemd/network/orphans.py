"""What the kernel has of ours and no lease speaks of: taps by their mark, elements of our tables."""

from collections.abc import Iterator
from pathlib import Path

from solo5_systemd.network import nft_elements
from solo5_systemd.network.ipam import TAP_PREFIX
from solo5_systemd.network.lease_files import STATE, all_readable, has_lease, is_readable, read_holdings, read_networks
from solo5_systemd.network.nft_elements import Element, Plan
from solo5_systemd.network.tap_counters import owner_of

LINKS = Path("/sys/class/net")


def read_strays(state: Path = STATE, links: Path = LINKS) -> tuple[str, ...]:
    """A line for each; leases are read before and after the kernel, so that nothing on its way seems to be stray."""
    if not is_readable(state):  # for any user but root: what is not seen is no proof
        return ()
    taps = sorted(name for name in _taps(state, links))
    return (*(f"tap {name}" for name in taps), *(f"nftables {element}" for element in _elements(state)))


def _taps(state: Path, links: Path) -> Iterator[str]:
    for link in links.glob(f"{TAP_PREFIX}*"):
        owner = owner_of(link)
        if owner is not None and not has_lease(owner[0], state):
            yield link.name


def _elements(state: Path) -> list[str]:
    """Nothing where nftables cannot be asked, or where what is held cannot be read."""
    try:
        from solo5_systemd.network.nft_tables import Tables, plain
    except (ImportError, OSError):  # the module, or the library that it loads, is not installed
        return []
    expected = set(_expected(state))
    tables = Tables()
    try:
        found = tables.elements()
    finally:
        tables.close()
    expected |= set(_expected(state))
    return sorted(map(str, found - set(map(plain, expected)))) if all_readable(state) else []


def _expected(state: Path) -> tuple[Element, ...]:
    reservations = [holding.reservation for holding in read_holdings(state)]
    return nft_elements.elements(Plan(networks=read_networks(state), reservations=reservations))
