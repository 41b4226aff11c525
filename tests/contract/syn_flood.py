"""`syn-flood` of `tests/support/senders`, in the network namespace of a neighbour."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.contract.netns import Outside, link


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What was sent: packets, the seconds that they took, and those that the kernel took of the sender's processor."""

    packets: int
    seconds: float
    kernel_seconds: float

    @property
    def rate(self) -> float:
        return self.packets / self.seconds

    @property
    def kernel_us(self) -> float:
        """The microseconds for a packet."""
        return self.kernel_seconds / self.packets * 1e6


class Flood:
    """Packets that each begin a TCP connection of another client, until it is over."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def goes_on(self) -> bool:
        return self._process.poll() is None

    def sent(self) -> Sent:
        """Wait for its end, and return what was sent."""
        answer = json.loads(self._process.communicate()[0])
        assert self._process.returncode == 0
        return Sent(packets=answer["sent"], seconds=answer["seconds"], kernel_seconds=answer["kernel_seconds"])


@contextmanager
def flood(outside: Outside, port: int, rate: int, seconds: int) -> Iterator[Flood]:
    """Send so many packets a second (0: as many as possible) to a port of the host; end it with the block."""
    mac = link(f"{outside.link}-in")["address"]
    words = ["syn-flood", f"{outside.link}-out", mac, outside.host, str(port), str(rate), str(seconds)]
    with subprocess.Popen(["nsenter", f"--net={outside.path}", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Flood(process)
        finally:
            process.kill()
