"""The guests with network devices, seen from the other end of their taps."""

import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.guests.namespace import Namespace
from tests.guests.tenders import Running, Tender

GUEST, HOST = "10.0.0.2", "10.0.0.1"
MAC = "02:00:00:00:00:02"
TAP = ("--net:service=tap0", f"--net-mac:service={MAC}")
PATIENCE = 5.0


@contextmanager
def serving(tender: Tender, *arguments: str) -> Iterator[Running]:
    with tender.running("net", f"--ipv4-gateway={HOST}", *arguments, options=TAP) as guest:
        guest.wait_for("serving")
        yield guest


def udp(namespace: Namespace, port: int = 0) -> socket.socket:
    with namespace.entered():
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(PATIENCE)
    s.bind(("", port))
    return s


def wire(namespace: Namespace, tap: str = "tap0") -> socket.socket:
    """Every frame that passes the tap."""
    with namespace.entered():
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        s.bind((tap, 3))
    s.settimeout(PATIENCE)
    return s


def checksum(data: bytes) -> int:
    total = sum(int.from_bytes(data[i : i + 2]) for i in range(0, len(data), 2))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def ping(namespace: Namespace, address: str, size: int = 56) -> bool:
    data = bytes(range(256)) * 8
    request = struct.pack("!BBHHH", 8, 0, 0, 7, 1) + data[:size]
    request = request[:2] + struct.pack("!H", checksum(request)) + request[4:]
    with namespace.entered():
        s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.settimeout(PATIENCE)
    with s:
        s.sendto(request, (address, 0))
        packet = s.recv(4096)[20:]
    return checksum(packet) == 0 and packet[0] == 0 and packet[4:] == request[4:]


def fetch(namespace: Namespace) -> bytes:
    with namespace.entered():
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.settimeout(PATIENCE)
    answer = b""
    with s:
        s.connect((GUEST, 80))
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while part := s.recv(4096):
            answer += part
    return answer


def test_announces_itself(net_tender: Tender, namespace: Namespace) -> None:
    namespace.ip("link", "set", "tap0", "mtu", "1400")
    with wire(namespace) as frames, serving(net_tender) as guest:
        assert guest.stdout().splitlines()[:2] == [
            f"service: mac {MAC} mtu 1400",
            f"service: ipv4 {GUEST}/24 gateway {HOST}",
        ]
        announcement = find(frames, lambda frame: frame[12:14] == b"\x08\x06")
        assert announcement[28:32] == announcement[38:42] == socket.inet_aton(GUEST)


@pytest.mark.parametrize("size", [0, 56, 1472])
def test_ping(net_tender: Tender, namespace: Namespace, size: int) -> None:
    with serving(net_tender):
        assert ping(namespace, GUEST, size)


def test_udp_echo(net_tender: Tender, namespace: Namespace) -> None:
    with serving(net_tender, "--udp=5300"), udp(namespace) as s:
        for port, data in ((7, b"x"), (5300, bytes(range(256)) * 5), (7, b"")):
            s.sendto(data, (GUEST, port))
            assert s.recvfrom(2048) == (data, (GUEST, port))
        s.settimeout(0.3)
        s.sendto(b"nobody listens", (GUEST, 5301))
        with pytest.raises(TimeoutError):
            s.recv(2048)


def test_tcp_one_after_another(net_tender: Tender, namespace: Namespace) -> None:
    with serving(net_tender, "hello"):
        for _ in range(70):  # more than there is room for at once
            answer = fetch(namespace)
            assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
            assert answer.endswith(b" hello\n")


def test_tcp_echo_repeats_all_that_comes_on_one_connection(net_tender: Tender, namespace: Namespace) -> None:
    with serving(net_tender), namespace.entered(), socket.create_connection((GUEST, 7), PATIENCE) as s:
        for message in (b"one", b"two\n", bytes(range(256)) * 8):
            s.sendall(message)
            echo = b""
            while len(echo) < len(message):
                echo += s.recv(4096)
            assert echo == message
        s.shutdown(socket.SHUT_WR)
        assert s.recv(1) == b""


def test_fills_memory_and_counts_its_pages(net_tender: Tender, namespace: Namespace) -> None:
    with serving(net_tender, "--fill=3"), udp(namespace) as s:
        s.sendto(b"how many are intact?", (GUEST, 9))
        assert s.recv(100) == b"768"


def find(frames: socket.socket, wanted: Callable[[bytes], bool]) -> bytes:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        frame = frames.recv(4096)
        if wanted(frame):
            return frame
    raise AssertionError("no such frame")


def test_lies(net_tender: Tender, namespace: Namespace) -> None:
    arguments = ("--spoof-ip=10.9.9.9", "--spoof-mac=02:00:00:00:66:66", "--spoof-arp=10.8.8.8")
    with wire(namespace) as frames, serving(net_tender, *arguments):
        find(frames, lambda f: f[26:30] == socket.inet_aton("10.9.9.9") and f[6:12].hex(":") == MAC)
        find(frames, lambda f: f[6:12].hex(":") == "02:00:00:00:66:66" and f[-7:] == b"spoofed")
        find(frames, lambda f: f[12:14] == b"\x08\x06" and f[28:32] == socket.inet_aton("10.8.8.8"))


def test_as_many_networks_as_can_be(net_tender: Tender, namespace: Namespace) -> None:
    lines = [f"tuntap add many{i} mode tap\nlink set many{i} up\n" for i in range(63)]
    batch = ["ip", "-n", namespace.name, "-batch", "-"]
    subprocess.run(batch, input="".join(lines), text=True, check=True)
    options = [f"--net:service{i}=many{i}" for i in range(63)]
    macs = [f"--net-mac:service{i}=02:00:00:00:00:{i:02x}" for i in range(63)]
    ended = net_tender.run("net63", options=(*options, *macs))
    assert ended.lines[:63] == [f"service{i}: mac 02:00:00:00:00:{i:02x} mtu 1500" for i in range(63)]
