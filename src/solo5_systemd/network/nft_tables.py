"""The kernel's tables `ip`, `ip6` and `bridge solo5`, written and verified through libnftables and nfnetlink."""

import ctypes
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nftables import Nftables

from solo5_systemd.base.dependencies import dependency_error
from solo5_systemd.base.errors import HostError, host_errors
from solo5_systemd.base.names import hash_of
from solo5_systemd.network import netlink as nl
from solo5_systemd.network import nft_elements, nft_rules
from solo5_systemd.network.drops import SETS, Dropped
from solo5_systemd.network.model import IpAddress, LeaseState
from solo5_systemd.network.modules import NF_TABLES, nft_hint, remedy
from solo5_systemd.network.nft_elements import ACTIVE, Ruleset
from solo5_systemd.network.nft_objects import TABLE, Element, listed_elements, listed_rules, unquoted
from solo5_systemd.network.nft_rules import ANNOUNCEMENTS, DYNAMIC, FAMILIES, FLOWS, STRANGERS, UNSERVED

# linux/netfilter/nfnetlink.h, nf_tables.h: subsystem 10, its messages.
_GETGEN, _GETELEMENT = 10 << 8 | 16, 10 << 8 | 13
_GEN_ID = 1
_SET_TABLE, _SET_NAME, _SET_ELEMENTS, _ELEMENT, _ELEMENT_KEY, _VALUE = 1, 2, 3, 1, 1, 1
_PACKETS_OF_ELEMENT = _SET_ELEMENTS, _ELEMENT, 7, 2, 2  # its expression, of which the data, of which the packets
_OWNED_PROBE = f"table ip {TABLE}-probe {{ flags owner, persist; }}"
_LOG_PROBE = f"table bridge {TABLE}-probe {{ chain probe {{ log group {ANNOUNCEMENTS}; }}; }}"

_MODULES = ("nf_tables", "nft_chain_nat", "nft_ct", "nft_masq", "nft_nat", "nft_limit", "nft_connlimit")

_BRIDGE, _IFNAMSIZ = 0, 16
_FAMILY_OF = {**nl.FAMILIES, _BRIDGE: 7}  # NFPROTO_BRIDGE

_REPLACE_ATTEMPTS = 3
"""Attempts to replace the tables while other programs commit; after the last, the next change verifies them again."""


class _Nft(Nftables):  # type: ignore[misc]
    """A context of libnftables, of the network namespace in which it is made."""

    def __init__(self) -> None:
        try:
            super().__init__()
        except OSError as error:  # libnftables.so cannot be loaded
            raise dependency_error(error) from error
        self.set_stateless_output(True)

    def run(self, commands: str) -> None:
        """Execute commands as one transaction; raises HostError."""
        code, _, error = self.cmd(commands)
        if code:
            reason = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
            raise HostError(f"nftables refused a change: {reason}.", nft_hint(reason, _MODULES))


def return_memory() -> None:
    """Return to the kernel what glibc holds of freed memory."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class Tables:
    """The service's tables in the kernel, with detection of changes by other programs. Methods raise HostError.

    Tables with an owner are as this process has left them: a check costs nothing. For others the kernel counts the
    commits of all programs (the generation of the ruleset). While it equals the value after this process's last commit,
    the tables are unchanged: a check costs one netlink message.

    Attributes:
        owned: the tables have an owner, as far as kernel and nftables support that: `flush ruleset` by another program
            skips them, and no repair is needed.
        announces: the kernel announces packets for tasks that sleep (nfnetlink_log).
    """

    def __init__(self) -> None:
        """Open sockets of libnftables and netlink."""
        nl.check_netfilter()  # before: the destructor of a context fails that was never initialized
        self._nft = _Nft()
        self._netfilter = nl.NetlinkSocket(nl.NETLINK_NETFILTER)
        self.owned = self._accepts(_OWNED_PROBE)
        self.announces = self._accepts(_LOG_PROBE)
        self._generation: int | None = None  # None: unknown until the tables are listed
        self._built = ""
        self._flows_are_lost = False

    def replace(self, ruleset: Ruleset) -> None:
        """Replace all tables in one transaction; retry if another program commits before they are verified."""
        commands = nft_rules.replace(ruleset, owned=self.owned, announced=self.announces)
        self._flows_are_lost = any(record.state is LeaseState.ATTACHED for record in ruleset.records)
        try:
            for _ in range(_REPLACE_ATTEMPTS):
                if self._commit(commands, self._current_generation(), rebuilt=True):
                    return
        finally:
            return_memory()  # libnftables takes 11 KB for each task in a large transaction

    def change(self, before: Ruleset, after: Ruleset) -> None:
        """Change the tables from `before` to `after`; replace them where they are not as `before`.

        A change keeps the kernel's counts of connections, which a replacement resets for every guest.
        """
        commands = nft_rules.change(before, after, owned=self.owned)
        done = bool(self._built) and self.are_intact(lambda: nft_elements.elements(before))
        if done and commands:
            try:
                done = self._commit(commands, self._generation, rebuilt=True)
            except HostError:  # another program has changed the tables since the check
                done = False
        if not done:
            self.replace(after)

    def distrust(self) -> None:
        """Have the next `change` replace the tables: what they are changed from may not be what they have."""
        self._built = ""

    def _commit(self, commands: str, known: int | None, *, rebuilt: bool = False) -> bool:
        """Run a transaction; return whether the state of the tables, as of `known`, is certain to be its result.

        It is if no other program has committed since the generation `known` (None: it was not certain before), or if
        the tables have an owner. `rebuilt`: the rules are other ones, and listed.
        """
        self._generation = None  # unknown if the transaction raises
        self._nft.run(commands)
        if rebuilt:
            self._nft.set_terse_output(True)  # without elements, of which clients can add 65536 to a set
            try:
                self._built = self._listing()[0]
            finally:
                self._nft.set_terse_output(False)
        if known is not None and (self.owned or self._current_generation() == known + 1):
            self._generation = known + 1
        return self._generation is not None

    def remove(self) -> None:
        """Remove all tables; idempotent, also on a kernel without nftables."""
        try:
            self._nft.run(nft_rules.remove(owned=self.owned))
        except HostError:
            if self._listing()[0]:
                raise
        self._generation, self._built = None, ""
        self._flows_are_lost = False

    def exchange(self, old: Iterable[Element], new: Iterable[Element] = ()) -> None:
        """Delete and add elements in one transaction: no packet finds neither. If one is missing, all of it fails."""
        if commands := f"{nft_rules.delete(old)}\n{nft_rules.add(new)}".strip("\n"):
            self._commit(commands, self._generation)

    def are_intact(self, expected: Callable[[], Iterable[Element]], *, verify: bool = False) -> bool:
        """Return whether the tables have the built rules and exactly the `expected` elements.

        They are listed, and `expected` is called, only with `verify`, after a change that failed, and, where they have
        no owner, if another program has committed since the last check.
        """
        if not verify and self.owned and self._generation is not None:
            return True
        generation = self._current_generation()
        if not verify and generation == self._generation:
            return True
        rules, elements = self._listing()
        if rules != self._built or elements != {unquoted(element) for element in expected()}:
            return False
        self._generation = generation
        return True

    def elements(self) -> frozenset[Element]:
        """Return all elements of all tables; empty where a table is missing."""
        return frozenset(self._listing()[1])

    def dropped(self) -> Dropped:
        """Return the counts of dropped packets since the tables were made, by guest."""
        counts = Counter[tuple[str, str]]()
        self._nft.set_stateless_output(False)
        try:
            for rule, (family, name) in ((rule, each) for rule, sets in SETS.items() for each in sets):
                for each in self._listed("set", family, name):
                    counts[rule, each["elem"]["val"]] += each["elem"]["counter"]["packets"]
        finally:
            self._nft.set_stateless_output(True)
        return Dropped(rules=+counts)

    def active_of(self, tap: str) -> int:
        """Return the frames from and to a guest that may sleep, since it was attached; costs one netlink message."""
        with host_errors("nftables cannot be read"):
            found = self._found(ACTIVE, _link_key(tap), _BRIDGE)
            return 0 if found is None else int.from_bytes(nl.attribute_of(found, *_PACKETS_OF_ELEMENT))

    def mistaken(self) -> Mapping[str, Sequence[str]]:
        """Return the taps of guests without their leased address, with the one from which they send; empty: none."""
        found: dict[str, list[str]] = {}
        for kind, name in (("map", STRANGERS), ("set", UNSERVED)):
            for each in self._listed(kind, "bridge", name):
                key, address = each if isinstance(each, list) else (each, "")
                found.setdefault(key["elem"]["val"] if isinstance(key, dict) else key, []).append(address)
        return found

    def _listed(self, kind: str, family: str, name: str) -> list[Any]:
        objects = self._json(f"list {kind} {family} {TABLE} {name}")
        return [each for item in objects for each in item.get(kind, {}).get("elem", ())]

    def forget_taps(self, taps: Iterable[str], *names: str) -> None:
        """Delete from dynamic sets what packets have added for some taps; costs a netlink message for each of both."""
        for tap in taps:
            for name in names:
                if self._built and self._has(name, _link_key(tap), _BRIDGE):
                    with suppress(HostError):  # it has timed out since
                        self._commit(f'delete element bridge {TABLE} {name} {{ "{tap}" }}', self._generation)

    def may_have_flows(self, address: IpAddress) -> bool:
        """Return whether a guest may have open connections of its own; costs one netlink message.

        Always True after a replacement of the tables: that empties the set of counts while connections stay open.
        """
        if self._flows_are_lost:
            return True
        return self._has(FLOWS, address.packed, address.version)

    def _has(self, name: str, value: bytes, version: int) -> bool:
        """Return whether a set has an element; True if the kernel fails to look it up."""
        try:
            return self._found(name, value, version) is not None
        except OSError:
            return True

    def _found(self, name: str, value: bytes, version: int) -> bytes | None:
        """Return the attributes of a set with one of its elements; None: it has none. Version 0: of table bridge."""
        of = nl.attribute(_SET_TABLE, TABLE.encode() + b"\0") + nl.attribute(_SET_NAME, name.encode() + b"\0")
        key = nl.nested(_ELEMENT, nl.nested(_ELEMENT_KEY, nl.attribute(_VALUE, value)))
        wanted = nl.NFGENMSG.pack(_FAMILY_OF[version], 0, 0) + of + nl.nested(_SET_ELEMENTS, key)
        try:
            _, body = next(self._netfilter.request(_GETELEMENT, 0, wanted))
        except FileNotFoundError:
            return None
        return body[nl.NFGENMSG.size :]

    def close(self) -> None:
        """Close the netlink socket."""
        self._netfilter.close()

    def _accepts(self, commands: str) -> bool:
        """Return whether kernel and nftables accept a transaction, which is not made."""
        self._nft.set_dry_run(True)
        try:
            return bool(self._nft.cmd(commands)[0] == 0)
        finally:
            self._nft.set_dry_run(False)

    def _listing(self) -> tuple[str, set[Element]]:
        """Return a hash of tables, chains, sets and rules, which take 600 KB, and all elements; empty: no table."""
        listings = {family: self._json(f"list table {family} {TABLE}") for family in FAMILIES}
        rules = {family: listed_rules(objects) for family, objects in listings.items()}
        known = hash_of(json.dumps(rules, sort_keys=True), 64) if any(rules.values()) else ""
        return known, {element for objects in listings.values() for element in listed_elements(objects, DYNAMIC)}

    def _json(self, command: str) -> list[Any]:
        """Return the objects of an nft listing; empty: the command failed."""
        self._nft.set_json_output(True)
        try:
            code, output, _ = self._nft.cmd(command)
        finally:
            self._nft.set_json_output(False)
        return [] if code else list(json.loads(output)["nftables"])

    def _current_generation(self) -> int:
        # Without NLM_F_DUMP and NLM_F_ACK the reply is a single NEWGEN message.
        with host_errors("nftables cannot be read", remedy(NF_TABLES)):
            _, body = next(self._netfilter.request(_GETGEN, 0, nl.NFGENMSG.pack(0, 0, 0)))
        return int.from_bytes(nl.attributes(body[nl.NFGENMSG.size :])[_GEN_ID])


def _link_key(link: str) -> bytes:
    return link.encode().ljust(_IFNAMSIZ, b"\0")
