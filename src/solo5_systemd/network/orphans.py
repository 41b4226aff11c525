"""Taps and nftables elements in the kernel without a matching lease."""

import os
from collections.abc import Iterator
from dataclasses import replace

from solo5_systemd.network import lease_files, nft_elements
from solo5_systemd.network.lease_files import has_lease, read_lease_records, read_networks
from solo5_systemd.network.model import LeaseState
from solo5_systemd.network.nft_elements import Ruleset
from solo5_systemd.network.nft_objects import Element, unquoted
from solo5_systemd.network.tap_counters import LINKS, TAP_PREFIX, read_tap_owner


def read_orphans() -> tuple[str, ...]:
    """Return one line for each orphaned tap and element; empty for a caller that may not read the lease records.

    Lease records are read before and after the kernel's state, so that an attach or release in progress leaves none.
    """
    if lease_files.STATE.exists() and not os.access(lease_files.STATE, os.R_OK):  # any user but root
        return ()
    return (*(f"tap {name}" for name in sorted(_taps())), *(f"nftables {element}" for element in _elements()))


def _taps() -> Iterator[str]:
    for link in LINKS.glob(f"{TAP_PREFIX}*"):
        owner = read_tap_owner(link)
        if owner is not None and not has_lease(owner[0]):
            yield link.name


def _elements() -> list[str]:
    """Return the orphaned elements; none without libnftables."""
    try:
        from solo5_systemd.network.nft_tables import Tables
    except (ImportError, OSError):  # python3-nftables or libnftables.so is not installed
        return []
    expected = set(_expected())
    tables = Tables()
    try:
        found = tables.elements()
    finally:
        tables.close()
    expected |= set(_expected())
    return sorted(map(str, found - set(map(unquoted, expected))))


def _expected() -> tuple[Element, ...]:
    # An attach or a release in progress has some of the elements of an attached task.
    records = [each if each.waits else replace(each, state=LeaseState.ATTACHED) for each in read_lease_records()]
    return nft_elements.elements(Ruleset(networks=read_networks(), records=records))
