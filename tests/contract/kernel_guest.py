"""A guest whose network stack is the kernel's, in a network namespace: its frames are copied to and from a tap."""

import asyncio
import contextlib
import json
import os
import subprocess
from ipaddress import IPv6Address
from typing import Any, Self

from tests.contract.guest import opened_tap, tun
from tests.contract.netns import entered, holder, run

from solo5_systemd.network.model import Lease


class KernelGuest:
    """A kernel at the tap of a lease.

    Args:
        mac: of its link; None: that of the lease.
        privacy: it makes temporary addresses as well (RFC 8981), and prefers them.
    """

    def __init__(self, lease: Lease, mac: str | None = None, *, privacy: bool = False) -> None:
        self._holder = holder()
        self._tap = opened_tap(lease.tap)[1]
        with entered(f"/proc/{self._holder.pid}/ns/net"):
            self._own = tun("eth0")
        for sysctl, value in (("accept_ra", "1"), ("autoconf", "1"), ("use_tempaddr", "2" if privacy else "0")):
            self.run("sh", "-c", f"echo {value} >/proc/sys/net/ipv6/conf/eth0/{sysctl}")
        self.run("ip", "link", "set", "eth0", "addrgenmode", "eui64", "mtu", "1500", "address", mac or lease.mac)
        self._copy(self._tap, self._own)
        self._copy(self._own, self._tap)

    async def __aenter__(self) -> Self:
        self.run("ip", "link", "set", "eth0", "up")
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in (self._tap, self._own):
            asyncio.get_running_loop().remove_reader(each)
            os.close(each)
        self._holder.communicate()

    def run(self, *words: str) -> str:
        """Run a program in the guest's namespace."""
        return run("nsenter", "-t", str(self._holder.pid), "-n", *words)

    def addresses(self) -> list[dict[str, Any]]:
        """Return the global addresses that have passed duplicate address detection."""
        [link] = json.loads(self.run("ip", "-j", "-6", "address", "show", "dev", "eth0"))
        found = [each for each in link["addr_info"] if each["scope"] == "global"]
        return [each for each in found if not each.get("tentative")]

    def routers(self) -> list[dict[str, Any]]:
        """Return the default routes."""
        found: list[dict[str, Any]] = json.loads(self.run("ip", "-j", "-6", "route", "show", "default"))
        return found

    async def pings(self, address: IPv6Address, *options: str) -> bool:
        """Return whether an address replies to a ping within a second; meanwhile, frames are copied."""
        command = ["nsenter", "-t", str(self._holder.pid), "-n", "ping", "-6", "-c1", "-W1", *options, str(address)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
        return done.returncode == 0

    async def until_pinged(self, address: IPv6Address, *options: str) -> None:
        async with asyncio.timeout(20):
            while not await self.pings(address, *options):
                pass

    def _copy(self, source: int, target: int) -> None:
        def copy() -> None:
            with contextlib.suppress(BlockingIOError, OSError):  # the link is down
                os.write(target, os.read(source, 1 << 16))

        asyncio.get_running_loop().add_reader(source, copy)
