"""nftables of this network namespace: our tables written and checked through libnftables."""

import errno
import json
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address
from typing import Any

import nftables

from solo5_systemd.errors import HostError
from solo5_systemd.network import nft_elements
from solo5_systemd.network.model import Dropped
from solo5_systemd.network.nft_chains import FAMILIES, FLOWS, FRAGMENTS, REFUSED, TABLE
from solo5_systemd.network.nft_elements import Element, Plan
from solo5_systemd.network.raw_netlink import NETLINK_NETFILTER, NLM_ACK, NetlinkSocket, attribute, attributes, nested

# linux/netfilter/nfnetlink.h, nf_tables.h: subsystem 10, its messages, the group that announces them.
_NEWGEN, _GETGEN, _GETELEMENT = 10 << 8 | 15, 10 << 8 | 16, 10 << 8 | 13
_GROUP_NFTABLES = 7
_TABLE_NAME = 1  # NFTA_TABLE_NAME, and the table's name in chains, rules, sets and elements alike
_GEN_ID = 1
_SET_TABLE, _SET_NAME, _SET_ELEMENTS, _ELEMENT, _ELEMENT_KEY, _VALUE = 1, 2, 3, 1, 1, 1
_OWNED_PROBE = f"table ip {TABLE}-probe {{ flags owner, persist; }}"
_NFGENMSG = struct.Struct("=BBH")

_PROTOCOLS = {str(socket.IPPROTO_TCP): "tcp", str(socket.IPPROTO_UDP): "udp"}

_TRIES = 3
"""So often our tables are made anew at once; afterwards they are in doubt, and looked at again with the next change."""


class Tables:
    """Our tables in the kernel, and whether anybody else touched them.

    The kernel counts the commits of all programs (the ruleset's generation): as long as it stands where our last
    commit left it, nobody changed anything, and that is known at the price of one message.
    """

    def __init__(self, *, owned: bool = True) -> None:
        """Open sockets of libnftables and netlink.

        Args:
            owned: our tables are to be ours alone where kernel and nftables know that: a flush of the whole ruleset
                by another program passes them over, and nothing has to be put back.
        """
        try:
            self._nft = nftables.Nftables()
        except OSError as error:  # it loads libnftables
            from solo5_systemd.dependencies import blamed

            raise blamed(error) from error
        self._nft.set_stateless_output(True)
        self._netfilter = NetlinkSocket(NETLINK_NETFILTER)
        self._owned = owned and self._can_own()
        self._generation: int | None = None  # None: what stands there is in doubt
        self._built: Mapping[str, list[object]] = {}
        self._flows_are_lost = False

    def replace(self, plan: Plan) -> None:
        """Make our tables exactly so, in one transaction; again where somebody else commits before it was looked at."""
        commands = nft_elements.replace(plan, owned=self._owned)
        self._flows_are_lost = bool(plan.reservations)
        for _ in range(_TRIES):
            if self._build(commands, self._current_generation()):
                return

    def change(self, before: Plan, after: Plan) -> None:
        """Make our tables the latter where they are the former, and replace them where they are not.

        A change leaves alone what the kernel has counted: a replacement would let each guest begin anew.
        """
        commands = nft_elements.change(before, after)
        if not self._built or not self.are_intact(lambda: nft_elements.elements(before)):
            self.replace(after)
        elif commands:
            try:
                done = self._build(commands, self._generation)
            except HostError:  # another program has changed them since
                done = False
            if not done:
                self.replace(after)

    def _build(self, commands: str, known: int | None) -> bool:
        """Run a transaction and list our rules; whether these are as we made them.

        They are where no other program has committed since the generation `known`, or our tables are ours alone.
        """
        self._generation = None
        self._run(commands)
        self._built = self._listing()[0]
        if known is not None and self._current_generation() == known + 1:
            self._generation = known + 1
        return self._owned or self._generation is not None

    def remove(self) -> None:
        self._run(nft_elements.remove(owned=self._owned))
        self._generation, self._built = None, {}
        self._flows_are_lost = False

    def add(self, elements: Iterable[Element]) -> None:
        self._change(nft_elements.add(elements))

    def delete(self, elements: Iterable[Element]) -> None:
        self._change(nft_elements.delete(elements))

    def are_intact(self, expected: Callable[[], Iterable[Element]]) -> bool:
        """Our tables hold our rules and exactly these elements, which are asked for only where that is in doubt."""
        generation = self._current_generation()
        if generation == self._generation:
            return True
        rules, elements = self._listing()
        if rules != self._built or elements != {plain(element) for element in expected()}:
            return False
        self._generation = generation
        return True

    def elements(self) -> frozenset[Element]:
        """What our tables hold; nothing where they are not there."""
        return frozenset(self._listing()[1])

    def dropped(self) -> Dropped:
        """Return how many packets of each guest were dropped since our tables were made."""
        return Dropped(refused=self._counted("ip", REFUSED), fragments=self._counted("bridge", FRAGMENTS))

    def _counted(self, family: str, name: str) -> Mapping[IPv4Address, int]:
        """The counters of a set that are not 0."""
        self._nft.set_stateless_output(False)
        try:
            objects = self._json(f"list set {family} {TABLE} {name}")
        finally:
            self._nft.set_stateless_output(True)
        return {
            IPv4Address(each["elem"]["val"]): count
            for item in objects
            for each in item.get("set", {}).get("elem", ())
            if (count := each["elem"]["counter"]["packets"])
        }

    def has_flows(self, address: IPv4Address) -> bool:
        """Whether a guest may have connections open that it has made; the price is one message.

        A replacement of the tables empties the set that counts them, and the connections go on.
        """
        if self._flows_are_lost:
            return True
        key = nested(_ELEMENT, nested(_ELEMENT_KEY, attribute(_VALUE, address.packed)))
        of = attribute(_SET_TABLE, TABLE.encode() + b"\0") + attribute(_SET_NAME, FLOWS.encode() + b"\0")
        wanted = _NFGENMSG.pack(socket.AF_INET, 0, 0) + of + nested(_SET_ELEMENTS, key)
        try:
            return bool(list(self._netfilter.request(_GETELEMENT, NLM_ACK, wanted)))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return False

    def close(self) -> None:
        self._netfilter.close()

    def _can_own(self) -> bool:
        self._nft.set_dry_run(True)
        try:
            return bool(self._nft.cmd(_OWNED_PROBE)[0] == 0)
        finally:
            self._nft.set_dry_run(False)

    def _change(self, commands: str) -> None:
        if not commands:
            return
        known, self._generation = self._generation, None
        before = self._current_generation()
        self._run(commands)
        after = self._current_generation()
        # Another commit in between leaves it open what that one did.
        self._generation = after if before == known and after == before + 1 else None

    def _run(self, commands: str) -> str:
        code, output, error = self._nft.cmd(commands)
        if code:
            reason = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
            raise HostError(f"nftables refused a change: {reason}.", "`nft list ruleset` shows what is there.")
        return str(output)

    def _listing(self) -> tuple[Mapping[str, list[object]], set[Element]]:
        """Rules (and chains and sets) by family, and the elements; nothing where a table is missing."""
        listings = {family: self._json(f"list table {family} {TABLE}") for family in FAMILIES}
        rules: dict[str, list[object]] = {}
        elements: set[Element] = set()
        for family, objects in listings.items():
            rules[family] = [_rule(item) for item in objects if "metainfo" not in item]
            elements.update(element for item in objects for element in _elements(item))
        return rules, elements

    def _json(self, command: str) -> list[Any]:
        """What a listing holds; nothing where it fails."""
        self._nft.set_json_output(True)
        try:
            code, output, _ = self._nft.cmd(command)
        finally:
            self._nft.set_json_output(False)
        return [] if code else list(json.loads(output)["nftables"])

    def _current_generation(self) -> int:
        # No dump and no acknowledgement is asked: the answer is the one NEWGEN message.
        for kind, body in self._netfilter.request(_GETGEN, 0, _NFGENMSG.pack(0, 0, 0)):
            if kind == _NEWGEN:
                return int.from_bytes(attributes(body[_NFGENMSG.size :])[_GEN_ID])
        raise HostError("nftables does not tell its generation: expected Linux 4.3 or later.")


class Watch(NetlinkSocket):
    """Readable when any program commits a change of nftables."""

    def __init__(self) -> None:
        super().__init__(NETLINK_NETFILTER, _GROUP_NFTABLES)

    def touched(self) -> bool:
        """Whether our tables are among what was announced; to be called when readable."""
        touched = False
        try:
            while True:
                for _, body in self.announced():
                    name = attributes(body[_NFGENMSG.size :]).get(_TABLE_NAME, b"")
                    touched |= name == TABLE.encode() + b"\0"
        except BlockingIOError:
            return touched
        except OSError:  # ENOBUFS: announcements were lost, so anything may have happened
            return True


def _rule(item: Mapping[str, Mapping[str, object]]) -> object:
    return {
        kind: {key: value for key, value in body.items() if key not in ("handle", "elem")}
        for kind, body in item.items()
    }


def _elements(item: Mapping[str, Mapping[str, object]]) -> Iterable[Element]:
    for kind in ("set", "map"):
        body = item.get(kind, {})
        elem = () if "dynamic" in str(body.get("flags", "")) else body.get("elem", ())
        for one in elem if isinstance(elem, list) else ():
            key, value = one if kind == "map" else (one, None)
            yield Element(
                family=str(body["family"]),
                name=str(body["name"]),
                key=_named(_words(key), body["type"]),
                value=() if value is None else _words(value),
            )


def _named(words: tuple[str, ...], types: object) -> tuple[str, ...]:
    """With protocols by name: nftables 1.0.6 looks for names in /etc/protocols, which need not be there."""
    kinds = types if isinstance(types, list) else [types]
    pairs = zip(words, kinds, strict=True)
    return tuple(_PROTOCOLS.get(word, word) if kind == "inet_proto" else word for word, kind in pairs)


def _words(value: object) -> tuple[str, ...]:
    match value:
        case {"concat": [*parts]}:
            return tuple(word for part in parts for word in _words(part))
        case {"prefix": {"addr": address, "len": length}}:
            return (f"{address}/{length}",)
        case {"elem": {"val": key}}:  # of a set with counters
            return _words(key)
        case _:
            return (str(value),)


def plain(element: Element) -> Element:
    """As the kernel's listing has it."""
    return Element(
        family=element.family,
        name=element.name,
        key=tuple(word.strip('"') for word in element.key),
        value=element.value,
    )
