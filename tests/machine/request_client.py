"""A client with a steady rate: `request_client.py HOST PORT RATE [MAX]`. Each request has a TCP connection of its own.

With MAX, requests that are due while so many are under way are not made: a guest that gets less of the processor than
the rate needs would forget some.

Each line on its stdin is answered by a line of JSON, once all requests so far are answered or have failed: how many
were answered, how many were refused, reset, or not answered within some seconds, the longest time of one, and what is
known of the first that were not answered. At the end of its stdin it waits for the requests that it has begun: a
connection that is cut off instead would stay open in conntrack tables on its way.
"""

import asyncio
import json
import math
import os
import socket
import sys
import time
from collections import Counter

HELD = 64
"""Connections that the guest holds at a time."""
PATIENCE = 10.0
FAILURES_SHOWN = 20
TICK = 0.005


class Requests:
    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._running: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        self.longest = 0.0
        self.failures: list[str] = []

    def begin(self) -> None:
        task = asyncio.get_running_loop().create_task(self._one())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    @property
    def under_way(self) -> int:
        return len(self._running)

    async def over(self) -> None:
        if present := tuple(self._running):
            await asyncio.wait(present)

    async def _one(self) -> None:
        loop = asyncio.get_running_loop()
        begun, clock = loop.time(), time.time()
        with socket.socket() as client:
            client.setblocking(False)
            try:
                async with asyncio.timeout(PATIENCE):
                    await loop.sock_connect(client, self._address)
                    await self._ask(loop, client)
                outcome = "answered"
            except ConnectionRefusedError:
                outcome = "refused"
            except ConnectionResetError:
                outcome = "reset"
            except (TimeoutError, OSError) as error:
                outcome = "lost"
                self._failed(client, clock, error)
            self.counts[outcome] += 1
        self.longest = max(self.longest, loop.time() - begun)

    async def _ask(self, loop: asyncio.AbstractEventLoop, client: socket.socket) -> None:
        await loop.sock_sendall(client, b"GET / HTTP/1.0\r\n\r\n")
        answer = b""
        while part := await loop.sock_recv(client, 4096):
            answer += part
        if not answer.startswith(b"HTTP/1.0 200 OK\r\n"):
            raise OSError(f"an answer of {len(answer)} bytes")

    def _failed(self, client: socket.socket, begun: float, error: Exception) -> None:
        state = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]  # its first byte (linux/tcp.h)
        if len(self.failures) < FAILURES_SHOWN:
            self.failures.append(f"{begun:.3f} port {client.getsockname()[1]} state {state} {error!r}")


async def main(host: str, port: int, rate: float, most: float = math.inf) -> None:
    loop = asyncio.get_running_loop()
    requests = Requests(host, port)
    asked: asyncio.Queue[bytes] = asyncio.Queue()
    loop.add_reader(0, lambda: asked.put_nowait(os.read(0, 1)))

    async def answer() -> None:
        while await asked.get():
            await requests.over()
            names = ("answered", "refused", "reset", "lost")
            counts = {name: requests.counts[name] for name in names}
            print(json.dumps({**counts, "longest": requests.longest, "failures": requests.failures}), flush=True)

    answering = asyncio.ensure_future(answer())
    begun, made = loop.time(), 0
    while not answering.done():
        due = int((loop.time() - begun) * rate)
        for _ in range(min(due - made, HELD)):
            if requests.under_way < most:
                requests.begin()
        made = due
        await asyncio.sleep(TICK)
    await requests.over()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:])))
