"""A listing of nftables without what the kernel writes into it by itself."""

import re

_OWNER = re.compile(r" # progname \S+|\n\s*flags (owner,)?persist(?=\n)")
"""Which program owns a table: none, between a kill and the next start."""

_COUNTED = re.compile(r"\n\s*elements = \{[^{}]*(ct count|limit rate)[^{}]*\}")
"""Guests with connections of their own, and with broadcasts."""


_CONTACTED = re.compile(r"(set (?:contacted|dropped_\w+) \{[^{}]*?)\n\s*elements = \{[^{}]*\}")
"""UDP ports of the host that had a flow; links with dropped packets."""


def settled(listing: str) -> str:
    """Of `nft --stateless list ruleset`."""
    return _CONTACTED.sub(r"\1", _COUNTED.sub("", _OWNER.sub("", listing)))
