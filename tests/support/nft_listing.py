"""The listing of nftables, and what is left of it without what the kernel writes into it by itself.

By the library, as a program takes five times as long: each machine and contract test reads it several times.
"""

import re

import nftables

_OWNER = re.compile(r" # progname \S+|\n\s*flags (owner,)?persist(?=\n)")
"""Which program owns a table: none, between a kill and the next start."""

_COUNTED = re.compile(r"\n\s*elements = \{[^{}]*(ct count|limit rate)[^{}]*\}")
"""Guests with connections of their own, and with broadcasts."""


_DROPPED = re.compile(r"(set dropped_\w+ \{[^{}]*?)\n\s*elements = \{[^{}]*\}")
"""Links with dropped packets."""


def listed() -> str:
    """Return what `nft --stateless list ruleset` writes, of this thread's network namespace."""
    library = nftables.Nftables()
    library.set_stateless_output(True)
    status, listing, errors = library.cmd("list ruleset")
    assert status == 0, errors
    return str(listing)


def settled(listing: str) -> str:
    """Of what `listed` returns."""
    return _DROPPED.sub(r"\1", _COUNTED.sub("", _OWNER.sub("", listing)))
