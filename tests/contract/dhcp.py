"""DHCP in a private namespace: a stand-in for PID 1 that runs dnsmasq, and a client at the tap of a guest."""

import signal
import struct
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path

from tests.contract.guest import BROADCAST, UDP, Guest
from tests.contract.netservice import Pid1, Service, until

from solo5_systemd.dbus.messages import Message
from solo5_systemd.networkd.dhcp import SEEN_AT

DISCOVER, OFFER, REQUEST, DECLINE, ACK, NAK, RELEASE, INFORM = range(1, 9)
NOBODY = IPv4Address("0.0.0.0")
EVERYBODY = IPv4Address("255.255.255.255")
_COOKIE = bytes.fromhex("63825363")
_WANTED = bytes((1, 3, 6, 12, 15, 26, 42, 119))


class Pid1WithServers(Pid1):
    """A stand-in for PID 1 that restarts and stops dnsmasq, as the unit has it."""

    broken = False

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.asked: list[str] = []
        self._directory = service.state / "dhcp"
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def pid(self, unit: str = "solo5-dhcp@default.service") -> int:
        return self._servers[unit].pid

    def running(self) -> list[str]:
        return [unit for unit, server in self._servers.items() if server.poll() is None]

    def answer(self, message: Message) -> Message | None:
        unit = message.body[0] if message.body else ""
        act = {"RestartUnit": self._restart, "StopUnit": self.stop}.get(message.member)
        if act is None:
            return super().answer(message)
        self.asked.append(message.member)
        act(unit)
        return Message.new_method_return(message, "o", ["/job/1"])

    def start(self, unit: str) -> None:
        if self.broken:
            return
        network = unit.removeprefix("solo5-dhcp@").removesuffix(".service")
        text = (self._directory / network / "dnsmasq.conf").read_text().replace(SEEN_AT, str(self._directory))
        config = self._links.parent / f"{network}.conf"
        config.write_text(text)
        log = self._links.parent / "dnsmasq.log"
        command = ["dnsmasq", "--keep-in-foreground", f"--conf-file={config}", "--user=root", f"--log-facility={log}"]
        server = subprocess.Popen(command)
        self._servers[unit] = server
        while not _listens(server.pid):  # as systemd waits for the fork
            assert server.poll() is None, log.read_text()
        self.begin(unit)

    def stop(self, unit: str) -> None:
        server = self._servers.pop(unit, None)
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait(10)
            self.end(unit)

    def _restart(self, unit: str) -> None:
        self.stop(unit)
        self.start(unit)

    def die(self, unit: str = "solo5-dhcp@default.service") -> None:
        """Kill a server; as with Restart=, another one is there."""
        self._servers[unit].kill()
        self._servers[unit].wait(10)
        self.start(unit)

    def close(self) -> None:
        for unit in list(self._servers):
            self.stop(unit)


def _listens(pid: int) -> bool:
    """Return whether a process of this namespace has a socket at port 67, or one of ICMPv6."""
    held = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            held.add(str(each.readlink()))
    lines = [
        line.split()
        for kind, port in (("udp", ":0043"), ("raw6", ":003A"))
        for line in Path(f"/proc/thread-self/net/{kind}").read_text().splitlines()[1:]
        if line.split()[1].endswith(port)
    ]
    return bool({f"socket:[{line[9]}]" for line in lines} & held)


class Answer:
    """A reply of a server: its fixed fields, and its options by number."""

    def __init__(self, frame: bytes) -> None:
        self.to_mac, self.from_mac = frame[:6], frame[6:12]
        self.source, self.to = IPv4Address(frame[26:30]), IPv4Address(frame[30:34])
        message = frame[42:]
        self.number = int.from_bytes(message[4:8])
        self.address, self.server = IPv4Address(message[16:20]), IPv4Address(message[20:24])
        self.hardware = message[28:34]
        self.options = dict(_options(message[240:]))
        self.kind = self.options[53][0]

    def addresses(self, option: int) -> list[str]:
        value = self.options.get(option, b"")
        return [str(IPv4Address(value[at : at + 4])) for at in range(0, len(value), 4)]


def _options(data: bytes) -> "Mapping[int, bytes]":
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data) and data[at] != 255:
        if data[at] == 0:
            at += 1
            continue
        end = at + 2 + data[at + 1]
        found[data[at]] = found.get(data[at], b"") + data[at + 2 : end]
        at = end
    return found


def message(
    kind: int,
    hardware: bytes,
    *,
    number: int = 7,
    options: Mapping[int, bytes] | None = None,
    ciaddr: IPv4Address = NOBODY,
    giaddr: IPv4Address = NOBODY,
    broadcast: bool = False,
) -> bytes:
    """Return a message of a client (RFC 2131)."""
    head = struct.pack("!BBBBIHH", 1, 1, 6, 0, number, 0, 0x8000 if broadcast else 0)
    addresses = ciaddr.packed + bytes(8) + giaddr.packed
    values = {53: bytes((kind,)), 55: _WANTED, **(options or {})}
    body = b"".join(bytes((code, len(value))) + value for code, value in values.items())
    return (head + addresses + hardware.ljust(16, b"\0") + bytes(192) + _COOKIE + body + b"\xff").ljust(300, b"\0")


def sent(
    guest: Guest,
    body: bytes,
    *,
    source: IPv4Address = NOBODY,
    to: IPv4Address = EVERYBODY,
    mac: bytes = BROADCAST,
    ports: tuple[int, int] = (68, 67),
) -> None:
    guest.send(guest.ipv4(mac, to, UDP, struct.pack("!HHHH", *ports, 8 + len(body), 0) + body, source=source))


def answers(guest: Guest) -> list[Answer]:
    """Return what a guest has received from port 67."""
    return [Answer(f) for f in guest.frames if f[12:14] == b"\x08\0" and f[23] == UDP and f[34:38] == b"\0\x43\0\x44"]


async def answered(guest: Guest, number: int, seconds: float = 5) -> Answer:
    await until(lambda: any(each.number == number for each in answers(guest)), seconds)
    return next(each for each in answers(guest) if each.number == number)


async def leased(guest: Guest, *, broadcast: bool = False, extra: Mapping[int, bytes] | None = None) -> Answer:
    """Get a lease as a client does, with one retry of a discovery that came before the bridge port was up."""
    guest.frames.clear()
    for number in range(100, 120):
        sent(guest, message(DISCOVER, guest.mac, number=number, broadcast=broadcast, options=extra))
        with suppress(TimeoutError):
            await answered(guest, number, 0.5)
            break
    offer = await answered(guest, number)
    assert offer.kind == OFFER
    # As MirageOS: the server is what `siaddr` of the offer names.
    wish = {50: offer.address.packed, 54: offer.server.packed, **(extra or {})}
    sent(guest, message(REQUEST, guest.mac, number=200, broadcast=broadcast, options=wish))
    return await answered(guest, 200)
