"""A flood of first packets of TCP connections to a published port: its rate, and what another guest's clients notice.

The sender's processor does all that the kernel does with a packet, as that of a network card. The floor of its
rate, and of its processor time, is a link that drops its packets at once; the floor of another guest's answers is the
time before the flood.
"""

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench.declared import SYSTEM, cleared, reload_ms
from tests.bench.dormant import FIRST, NO_LIMIT, PORT, WAITS, declare, declare_network, state, until
from tests.bench.extent import extent
from tests.bench.figures import Figure, Report
from tests.contract.netns import Outside, run
from tests.contract.syn_flood import Sent, flood

from solo5_systemd.network.model import LeaseState

RATE = 100_000
SECONDS = extent(10, 1)
PAUSE_S = 0.001
"""Between two requests to the other guest."""

OTHER, OTHER_PORT = "bench-other", 20997
HOLD = Path("/run/bench-hold")
"""While it exists, no start of the dormant task goes on."""

UNIT = SYSTEM / "xbench-hold.service"
HELD = f"[Service]\nType=oneshot\nExecStart=/bin/sh -c 'while [ -e {HOLD} ]; do sleep 0.1; done'\n"


class Flooded:
    """A dormant guest and another one; client `far` sends the flood, and `near` has requests for the other guest."""

    def __init__(self, report: Report, far: Outside, near: Outside) -> None:
        self._report = report
        self._far = far
        self._near = near
        with near.entered():
            self._client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._client.settimeout(1)

    def measure(self) -> None:
        """Add all figures."""
        floor = self._dropped()
        HOLD.touch()
        self._beside("a dormant guest whose start takes longer", floor)
        HOLD.unlink()
        until(lambda: state(FIRST) is LeaseState.ATTACHED)
        _rest()
        before = _starts()
        self._beside("a dormant guest", floor)
        self._add("starts of a dormant guest by a flood", "", _starts() - before)
        self._beside("a guest that is awake", floor)

    def _dropped(self) -> Sent:
        """Send a flood of which the link drops each packet."""
        hook = f'type filter hook ingress device "{self._far.link}-in" priority 0; drop;'
        run("nft", f"table netdev bench {{ chain drops {{ {hook} }}; }}")
        try:
            with flood(self._far, PORT, 0, SECONDS) as sending:
                return sending.sent()
        finally:
            run("nft", "delete", "table", "netdev", "bench")

    def _beside(self, what: str, floor: Sent) -> None:
        calm = self._answers()
        with flood(self._far, PORT, RATE, SECONDS) as sending:
            found = self._answers()
            sent = sending.sent()
        self._add(f"flood of {what} (floor: dropped at once)", "/s", sent.rate, floor.rate)
        self._add(f"processor time of the kernel, {what} (same floor)", "µs", sent.kernel_us, floor.kernel_us)
        for part in (0.5, 0.99):
            name = f"another guest's answer beside a flood of {what}, {part:.0%} (floor: before)"
            self._add(name, "ms", *(sorted(values)[int(len(values) * part)] for values in (found, calm)))

    def _answers(self) -> Sequence[float]:
        """Return the milliseconds of requests to the other guest, each of which is answered."""
        end, found = time.monotonic() + SECONDS, []
        while time.monotonic() < end:
            begun = time.perf_counter()
            self._client.sendto(b"hello", (self._near.host, OTHER_PORT))
            assert self._client.recv(100)
            found.append((time.perf_counter() - begun) * 1000)
            time.sleep(PAUSE_S)
        return found

    def _add(self, name: str, unit: str, ours: float, floor: float | None = None) -> None:
        self._report.add(Figure(name=name, unit=unit, ours=ours, floor=floor))


def _starts() -> int:
    log = run("journalctl", "--output=cat", f"OBJECT_SYSTEMD_UNIT={FIRST}.service")
    return log.count(" is started: ")


def _rest() -> None:
    """End the first task until its next packet."""
    run("solo5ctl", "sleep", FIRST)
    until(lambda: state(FIRST) is LeaseState.WAITING)


def measure(report: Report, _: object) -> None:
    """Add the figures."""
    with ExitStack() as stack:
        far, near = Outside("far"), Outside("near", "192.0.3.1", "192.0.3.2")
        for each in (far, near):
            stack.callback(each.close)
        near.ip("route", "add", "default", "via", near.host)
        run("ip", "route", "add", "198.18.0.0/15", "via", far.address)  # where the answers go
        stack.enter_context(cleared())
        stack.callback(HOLD.unlink, missing_ok=True)
        declare_network()
        UNIT.write_text(HELD)
        before = f"{NO_LIMIT}Wants={UNIT.name}\nAfter={UNIT.name}\n"
        declare(FIRST, f"Publish={PORT}:80\n{WAITS}", before=before)
        declare(OTHER, f"Publish={OTHER_PORT}:7/udp\n")
        reload_ms()
        run("systemctl", "start", f"{FIRST}.socket", f"{FIRST}.service", f"{OTHER}.service")
        until(lambda: state(FIRST) is LeaseState.ATTACHED)
        _rest()
        Flooded(report, far, near).measure()
