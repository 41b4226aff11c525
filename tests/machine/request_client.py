"""A client with a steady rate: `request_client.py HOST PORT RATE`. Each request has a TCP connection of its own.

Each line on its stdin is answered by a line of JSON, once all requests so far are answered or have failed: how many
were answered, how many were refused, reset, or not answered within some seconds, and the longest time of one. At the
end of its stdin it waits for the requests that it has begun: a connection that is cut off instead would stay open in
conntrack tables on its way.
"""

import asyncio
import json
import os
import socket
import sys
from collections import Counter

PATIENCE = 10.0
TICK = 0.005


class Requests:
    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._running: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        self.longest = 0.0

    def begin(self) -> None:
        task = asyncio.get_running_loop().create_task(self._one())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def over(self) -> None:
        if present := tuple(self._running):
            await asyncio.wait(present)

    async def _one(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(PATIENCE):
                self.counts[await self._ask(loop)] += 1
        except ConnectionRefusedError:
            self.counts["refused"] += 1
        except ConnectionResetError:
            self.counts["reset"] += 1
        except (TimeoutError, OSError):
            self.counts["lost"] += 1
        self.longest = max(self.longest, loop.time() - begun)

    async def _ask(self, loop: asyncio.AbstractEventLoop) -> str:
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, self._address)
            await loop.sock_sendall(client, b"GET / HTTP/1.0\r\n\r\n")
            answer = b""
            while part := await loop.sock_recv(client, 4096):
                answer += part
        return "answered" if answer.startswith(b"HTTP/1.0 200 OK\r\n") else "lost"


async def main(host: str, port: int, rate: float) -> None:
    loop = asyncio.get_running_loop()
    requests = Requests(host, port)
    asked: asyncio.Queue[bytes] = asyncio.Queue()
    loop.add_reader(0, lambda: asked.put_nowait(os.read(0, 1)))

    async def answer() -> None:
        while await asked.get():
            await requests.over()
            names = ("answered", "refused", "reset", "lost")
            tally = {name: requests.counts[name] for name in names} | {"longest": requests.longest}
            print(json.dumps(tally), flush=True)

    answering = asyncio.ensure_future(answer())
    begun, made = loop.time(), 0
    while not answering.done():
        due = int((loop.time() - begun) * rate)
        for _ in range(min(due - made, 64)):  # what the guest holds at a time
            requests.begin()
        made = due
        await asyncio.sleep(TICK)
    await requests.over()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
