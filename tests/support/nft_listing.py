"""A listing of nftables without what the kernel writes into it by itself."""

import re

_OWNER = re.compile(r" # progname \S+|\n\s*flags (owner,)?persist(?=\n)")
"""Which program owns a table: none, between a kill and the next start."""

_COUNTED = re.compile(r"\n\s*elements = \{[^{}]*(ct count|limit rate)[^{}]*\}")
"""Guests with connections of their own, and with broadcasts."""


_DROPPED = re.compile(r"(set dropped_\w+ \{[^{}]*?)\n\s*elements = \{[^{}]*\}")
"""Links with dropped packets."""


def settled(listing: str) -> str:
    """Of `nft --stateless list ruleset`."""
    return _DROPPED.sub(r"\1", _COUNTED.sub("", _OWNER.sub("", listing)))
