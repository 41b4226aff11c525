"""Listings of the packet filters of other programs: of nftables, and of iptables' older kernel interface."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from solo5_systemd.base.errors import DependencyError
from solo5_systemd.host import other_filters
from solo5_systemd.network.raw_netlink import check_netfilter
from solo5_systemd.settings.network import NetworkSettings

_IPTABLES = {"ip": "iptables", "ip6": "ip6tables"}
_PROGRAMS = "/usr/sbin"


def read_filters(
    root: Path, networks: Sequence[NetworkSettings]
) -> tuple[Sequence[other_filters.DroppingChain] | None, Sequence[str], Sequence[str]]:
    """Return the values of `Kernel.dropping_chains`, `forwarding_tables` and `forwarding_tables6`."""
    try:
        from nftables import Nftables

        check_netfilter()
        nft = Nftables()
    except (ImportError, OSError, DependencyError):  # of python3-nftables, libnftables.so, the module nfnetlink
        return None, (), ()
    nft.set_json_output(True)
    nft.set_stateless_output(True)
    listing = _listed(nft, {"chains": None})
    if listing is None:
        return None, (), ()
    chains = [item["chain"] for item in listing if "chain" in item]
    # Rules only of tables that can drop a packet: others may have thousands.
    legacy = [each for of in _IPTABLES for each in other_filters.saved_listing(_legacy_rules(root, of), of)]
    found = other_filters.dropping([*_tables(nft, filter(other_filters.may_drop, chains)), *legacy], networks)
    return found, _forwarding(nft, chains, 4), _forwarding(nft, chains, 6)


def _forwarding(nft: Any, chains: Sequence[Mapping[str, Any]], version: int) -> Sequence[str]:
    """Return the tables of programs for which the host forwards, where this service drops packets between others."""
    family = "ip" if version == 4 else "ip6"
    ours = _listed(nft, {"chain": {"family": family, "table": "solo5", "name": "foreign"}}) or ()
    if not other_filters.drops_foreign(ours):
        return ()
    translations = [chain for chain in chains if other_filters.is_translation(chain, version)]
    return other_filters.translating(_tables(nft, translations), version)


def _tables(nft: Any, chains: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the listings of the tables of these chains, one after the other."""
    names = dict.fromkeys((chain["family"], chain["table"]) for chain in chains)
    listings = (_listed(nft, {"table": {"family": family, "name": name}}) or () for family, name in names)
    return [item for listing in listings for item in listing]


def _legacy_rules(root: Path, family: str) -> str:
    """Return the rules of iptables' older kernel interface, which nftables does not list; empty where it is unused."""
    command = (f"{_PROGRAMS}/{_IPTABLES[family]}-legacy-save", "-t", "filter")
    try:
        if b"filter" not in (root / f"proc/net/{family}_tables_names").read_bytes().split():
            return ""
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _listed(nft: Any, what: Mapping[str, object]) -> Sequence[Mapping[str, Any]] | None:
    code, output, _ = nft.json_cmd({"nftables": [{"list": what}]})
    return output.get("nftables", ()) if code == 0 else None
