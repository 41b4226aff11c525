"""A flood of first packets of TCP connections to a published port: its rate, and what another guest's clients notice.

In a booted machine, as root:  python3 -m tests.bench.flood ROUNDS

The sender's processor does all that the kernel does with a packet, as that of a network card. The floor of its
rate, and of its processor time, is a link that drops its packets at once; the floor of another guest's answers is the
time before the flood. What the sender alone takes from the other guest is seen beside floods that are dropped.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.bench.declared import ETC, reload_ms
from tests.bench.dormant import FIRST, PORT, SETTINGS, declare_network, state, write_declaration
from tests.bench.extent import extent
from tests.bench.figures import Report, times
from tests.contract.netns import Outside, run
from tests.contract.syn_flood import Sent, flood

from solo5_systemd.network.model import LeaseState
from solo5_systemd.network.remembered_addresses import ADDRESSES

RATE = 100_000
SECONDS = extent(10, 1)
PAUSE_S = 0.001
"""Between two requests to the other guest."""

OTHER, OTHER_PORT = "bench-other", 20997
HOLD = Path("/run/bench-hold")
"""While it exists, no start of the dormant task goes on."""

UNIT = Path("/run/systemd/system/bench-hold.service")
WAITS = f"while [ -e {HOLD} ]; do sleep 0.1; done"
DROPS = {
    "netdev": 'type filter hook ingress device "{}" priority 0; drop;',
    "ip": 'type filter hook prerouting priority raw; iifname "{}" drop;',
}
"""The earliest rules that drop the flood, by the family of their table: at its link, and before connection tracking."""

TIMEOUT_S = 60.0


class Flooded:
    """A dormant guest, another one, and the clients of both.

    Attributes:
        far: sends the flood.
        near: has requests for the other guest.
    """

    def __init__(self, report: Report, far: Outside, near: Outside) -> None:
        self._report = report
        self._far = far
        self._near = near
        with near.entered():
            self._client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._client.settimeout(1)
        self._values: dict[tuple[str, str], tuple[list[float], list[float]]] = {}

    def measure(self) -> None:
        """Measure all figures once."""
        with self._dropped("netdev"), flood(self._far, PORT, 0, SECONDS) as sending:
            floor = sending.sent()
        for family, where in (("netdev", "by its link"), ("ip", "before connection tracking")):
            with self._dropped(family):
                self._beside(f"what is dropped {where}", floor)
        HOLD.touch()
        self._beside("a dormant guest whose start takes longer", floor)
        HOLD.unlink()
        _until(lambda: state(FIRST) is LeaseState.ATTACHED)
        _rest()
        self._beside_a_start()
        _rest()
        before = _starts()
        self._beside("a dormant guest", floor)
        self._add("starts of a dormant guest by a flood", "", _starts() - before)
        self._beside("a guest that is awake", floor)
        _rest()

    def report(self) -> None:
        """Add all figures."""
        for (name, unit), (ours, floor) in self._values.items():
            self._report.add(times(name, ours, floor, unit=unit))

    @contextmanager
    def _dropped(self, family: str) -> Iterator[None]:
        """Drop the flood, for the block."""
        run("nft", f"table {family} bench {{ chain drops {{ {DROPS[family].format(f'{self._far.link}-in')} }}; }}")
        try:
            yield
        finally:
            run("nft", "delete", "table", family, "bench")

    def _beside(self, what: str, floor: Sent) -> None:
        calm = self._answers()
        with flood(self._far, PORT, RATE, SECONDS) as sending:
            found = self._answers()
            sent = sending.sent()
        self._add(f"flood of {what} (floor: dropped at once)", "/s", sent.rate, floor.rate)
        self._add(f"processor time of the kernel, {what} (same floor)", "µs", sent.kernel_us, floor.kernel_us)
        self._compare(f"beside a flood of {what}", found, calm)

    def _beside_a_start(self) -> None:
        calm = self._answers()
        with self._far.entered():
            client = socket.socket(socket.AF_INET)
        client.setblocking(False)
        with client:
            with suppress(BlockingIOError):
                client.connect((self._far.host, PORT))
            self._compare("beside a start by one packet", self._answers(), calm)

    def _compare(self, where: str, found: Sequence[float], calm: Sequence[float]) -> None:
        for part in (0.5, 0.99):
            name = f"another guest's answer {where}, {part:.0%} (floor: before)"
            self._add(name, "ms", _quantile(found, part), _quantile(calm, part))

    def _answers(self) -> Sequence[float]:
        """Return the milliseconds of requests to the other guest, each of which is answered."""
        end, found = time.monotonic() + SECONDS, []
        while time.monotonic() < end:
            found.append(self._asked())
            time.sleep(PAUSE_S)
        return found

    def _asked(self) -> float:
        begun = time.perf_counter()
        self._client.sendto(b"hello", (self._near.host, OTHER_PORT))
        assert self._client.recv(100)
        return (time.perf_counter() - begun) * 1000

    def _add(self, name: str, unit: str, ours: float, *floor: float) -> None:
        values, floors = self._values.setdefault((name, unit), ([], []))
        values.append(ours)
        floors.extend(floor)


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


def _starts() -> int:
    log = run("journalctl", "--output=cat", f"OBJECT_SYSTEMD_UNIT={FIRST}.service")
    return log.count(" is started: ")


def _rest() -> None:
    """End the first task until its next packet."""
    run("solo5ctl", "sleep", FIRST)
    _until(lambda: state(FIRST) is LeaseState.WAITING)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@contextmanager
def _declared() -> Iterator[None]:
    """Have a dormant task and one that runs, and remove both afterwards."""
    declare_network()
    UNIT.write_text(f"[Service]\nType=oneshot\nExecStart=/bin/sh -c '{WAITS}'\n")
    write_declaration(FIRST, f"Publish={PORT}:80\nIdleSec=1h\nIdleAction=stop\n")
    path = ETC / f"{FIRST}.unikernel"
    path.write_text(f"[Unit]\nWants={UNIT.name}\nAfter={UNIT.name}\n{path.read_text()}")
    write_declaration(OTHER, f"Publish={OTHER_PORT}:7/udp\n")
    reload_ms()
    try:
        run("systemctl", "start", f"{FIRST}.socket", f"{FIRST}.service", f"{OTHER}.service")
        _until(lambda: state(FIRST) is LeaseState.ATTACHED)
        _rest()
        yield
    finally:
        HOLD.unlink(missing_ok=True)
        units = [f"{FIRST}.socket", f"{FIRST}.service", f"{OTHER}.service"]
        subprocess.run(["systemctl", "stop", *units], stderr=subprocess.DEVNULL)
        for path in (SETTINGS, UNIT, *ETC.glob("bench*.unikernel"), *ADDRESSES.glob("bench*.json")):
            path.unlink(missing_ok=True)
        reload_ms()


def measure(report: Report, rounds: int = 1) -> None:
    """Add the figures: medians of so many rounds, of two minutes each."""
    with ExitStack() as stack:
        far, near = Outside("far"), Outside("near", "192.0.3.1", "192.0.3.2")
        for each in (far, near):
            stack.callback(each.close)
        near.ip("route", "add", "default", "via", near.host)
        run("ip", "route", "add", "198.18.0.0/15", "via", far.address)  # where the answers go
        stack.enter_context(_declared())
        flooded = Flooded(report, far, near)
        for _ in range(rounds):
            flooded.measure()
        flooded.report()


if __name__ == "__main__":
    measure(Report(), int(sys.argv[1]))
