"""The files of the DHCP servers, below /run/solo5/network/dhcp.

    NETWORK/dnsmasq.conf    the configuration of the network's server
    NETWORK/hosts/TAP       the entry of a guest, from its attach until its release
    NETWORK/options/TAP     the guest's options

A server notices a new file by itself (inotify). It keeps the content of a file that was removed or changed, refuses an
entry with an address of an earlier one, and gives an address that it has leased to no other MAC address: see
`Servers.outdated`.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import NetworkName
from solo5_systemd.network.dhcp import (
    HOSTS,
    OPTIONS,
    entry,
    is_served,
    options,
    server_config,
)
from solo5_systemd.network.model import Lease, LeaseRecord, Network, Reservation

SEEN_AT = "/run/solo5-dhcp"
"""The path of all these files, which are below a directory that only root can enter, in the sandbox of a server."""

_CONFIG = "dnsmasq.conf"
_GONE = ".gone"


@dataclass(frozen=True, kw_only=True)
class Servers:
    """The servers as they have to be.

    Attributes:
        needed: the networks with a guest.
        outdated: those of them whose server has read entries that contradict the present ones, until its restart.
        idle: the networks that had a guest, and have none.
    """

    needed: frozenset[NetworkName] = frozenset()
    outdated: frozenset[NetworkName] = frozenset()
    idle: frozenset[NetworkName] = frozenset()


@dataclass
class _Entries:
    """The entries of a network.

    Attributes:
        present: the texts of each tap with files.
        known: texts that the server may have read, by address, MAC address and tap.
        outdated: it may have read others than the present ones, which contradict them.
    """

    present: dict[str, tuple[str, str]] = field(default_factory=dict)
    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    outdated: bool = False


class DhcpFiles:
    """The entries of guests on networks with DHCP. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._entries: dict[NetworkName, _Entries] = {}

    def restore(self, records: Iterable[LeaseRecord], networks: Mapping[NetworkName, Network]) -> None:
        """Write the files of attached tasks, and remove all others; servers of an earlier process are outdated.

        Raises:
            HostError: a file cannot be written.
        """
        for record in records:
            self.add(record, networks)
        (self._directory / _GONE).unlink(missing_ok=True)
        for directory in [each for each in self._directory.glob("*") if each.is_dir()]:
            entries = self._entries.get(NetworkName(directory.name), _Entries())
            # With those of a writer that was killed, which begin with a dot.
            for file in (*(directory / HOSTS).glob("*"), *(directory / OPTIONS).glob("*")):
                if file.name not in entries.present:
                    self._remove(file)
            self.forget(NetworkName(directory.name))
        for entries in self._entries.values():
            entries.outdated = True

    def add(self, record: LeaseRecord, networks: Mapping[NetworkName, Network]) -> None:
        """Write the files of a task's NICs, before their taps are made; idempotent.

        Raises:
            HostError: a file cannot be written.
        """
        for lease in record.reservation.leases:
            network = networks[lease.network]
            if is_served(network):
                self._add(network, lease, (entry(lease), options(lease, record.reservation.task, record.names)))

    def _add(self, network: Network, lease: Lease, texts: tuple[str, str]) -> None:
        directory = self._directory / network.name
        entries = self._entries.setdefault(network.name, _Entries())
        try:
            if not entries.present:
                for each in (directory / HOSTS, directory / OPTIONS):
                    each.mkdir(parents=True, exist_ok=True)
                for each in (self._directory, directory, directory / HOSTS, directory / OPTIONS):
                    each.chmod(0o755)  # for the server's user; the directory above is closed to others
                replace_file(directory / _CONFIG, server_config(network, f"{SEEN_AT}/{network.name}"), mode=0o644)
            # The entry last: a server that has the guest's entry has its options.
            for kind, text in ((OPTIONS, texts[1]), (HOSTS, texts[0])):
                replace_file(directory / kind / lease.tap, text, mode=0o644)
        except OSError as error:
            raise HostError(
                f"the files of the DHCP server of network {network.name} cannot be written: {error.strerror}.",
                f"`df {self._directory.parent}` shows the free space.",
            ) from error
        entries.present[lease.tap] = texts
        for key in (lease.tap, lease.mac, str(lease.address)):
            entries.outdated |= entries.known.setdefault(key, texts) != texts

    def remove(self, reservation: Reservation, networks: Mapping[NetworkName, Network]) -> None:
        """Remove the files of a task's NICs; idempotent."""
        for lease in reservation.leases:
            if lease.network in self._entries:
                self._entries[lease.network].present.pop(lease.tap, None)
            if lease.network in networks and is_served(networks[lease.network]):
                for kind in (HOSTS, OPTIONS):
                    self._remove(self._directory / lease.network / kind / lease.tap)

    def _remove(self, file: Path) -> None:
        gone = self._directory / _GONE
        with suppress(FileNotFoundError):
            file.replace(gone)  # dnsmasq reads a file that is removed from its directory, and logs the error
            gone.unlink()

    def pop_servers(self) -> Servers:
        """Return the servers as they have to be; those that are outdated are returned once."""
        outdated = {name: entries for name, entries in self._entries.items() if entries.present and entries.outdated}
        for entries in outdated.values():
            entries.outdated = False
            entries.known.clear()
            for text in entries.present.values():
                mac, tag, address = text[0].strip().split(",")
                entries.known |= {tag.removeprefix("set:"): text, mac: text, address: text}
        needed = frozenset(name for name, entries in self._entries.items() if entries.present)
        return Servers(needed=needed, outdated=frozenset(outdated), idle=frozenset(self._entries.keys() - needed))

    @property
    def in_use(self) -> bool:
        """Whether a network has or had a guest with DHCP; safe to read in any thread."""
        return bool(self._entries)

    def forget(self, network: NetworkName) -> None:
        """Remove what is left of a network whose server has stopped, unless it has a guest again."""
        entries = self._entries.get(network)
        if entries is not None and entries.present:
            return
        self._entries.pop(network, None)
        directory = self._directory / network
        (directory / _CONFIG).unlink(missing_ok=True)
        for each in (directory / HOSTS, directory / OPTIONS, directory, self._directory):
            with suppress(OSError):  # not empty, or removed by another program
                each.rmdir()
