"""A client of a guest's echo: `echo_client.py HOST PORT PATIENCE`. One TCP connection for ever, and numbered datagrams.

It sends on both every 20 ms. Each line on its stdin is answered by a line of JSON about all that was sent until then:
how many messages the connection has brought back, why it ended, and how many datagrams were sent and did not come back
within so many seconds.
"""

import json
import select
import socket
import sys
import time
from contextlib import suppress

PACE = 0.02


class Stream:
    """A message is sent when the one before it has come back, whole."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, 10)
        self.socket.setblocking(False)
        self.echoed = 0
        self.broken = ""
        self._awaited = b""

    def send(self) -> None:
        if not self._awaited and not self.broken:
            self._awaited = b"message %d\n" % (self.echoed + 1)
            self.socket.send(self._awaited)

    def receive(self) -> None:
        try:
            data = self.socket.recv(4096)
        except OSError as error:
            self.broken = str(error)
            return
        if not data or not self._awaited.startswith(data):
            self.broken = f"{data!r} came for {self._awaited!r}"
            return
        self._awaited = self._awaited[len(data) :]
        self.echoed += not self._awaited


class Datagrams:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(address)
        self.socket.setblocking(False)
        self.sent = 0
        self.missing: set[int] = set()

    def send(self) -> None:
        self.sent += 1
        self.missing.add(self.sent)
        with suppress(OSError):  # it is missing
            self.socket.send(b"%d" % self.sent)

    def receive(self) -> None:
        with suppress(OSError):  # a refusal, by ICMP
            self.missing.discard(int(self.socket.recv(4096)))


class Client:
    """Both, and what has been asked of them."""

    def __init__(self, address: tuple[str, int], patience: float) -> None:
        self.stream = Stream(address)
        self.datagrams = Datagrams(address)
        self._patience = patience
        self._counted = 0
        """The last datagram that was waited for: what is missing of those until then is not waited for again."""

    def run(self) -> None:
        while True:
            self.exchange()
            if select.select([sys.stdin], [], [], 0)[0]:
                if not sys.stdin.readline():
                    return
                self.answer()

    def exchange(self) -> None:
        """One message and one datagram, and whatever comes back until the next are due."""
        self.stream.send()
        self.datagrams.send()
        end = time.monotonic() + PACE
        while (left := end - time.monotonic()) > 0:
            open_ones = [self.datagrams.socket] if self.stream.broken else [self.datagrams.socket, self.stream.socket]
            for ready in select.select(open_ones, [], [], left)[0]:
                (self.stream if ready is self.stream.socket else self.datagrams).receive()

    def answer(self) -> None:
        sent, echoed = self.datagrams.sent, self.stream.echoed
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            is_whole = not any(self._counted < number <= sent for number in self.datagrams.missing)
            if is_whole and (self.stream.broken or self.stream.echoed > echoed):
                break
            self.exchange()
        self._counted = sent
        lost = sum(number <= sent for number in self.datagrams.missing)
        tally = {"echoed": self.stream.echoed, "broken": self.stream.broken, "sent": sent, "lost": lost}
        print(json.dumps(tally), flush=True)


if __name__ == "__main__":
    Client((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])).run()
