"""Faults of the kernel during an attach: one sentence, and nothing is left of it."""

import asyncio
from pathlib import Path

import pytest
from tests.contract.netservice import Service, host_state, nic, tcp, udp

from solo5_systemd.errors import HostError
from solo5_systemd.names import TaskName
from solo5_systemd.network.guest_limits import Limits
from solo5_systemd.network.model import Reservation
from solo5_systemd.settings.egress import egress

A = TaskName("a")
NETWORKS = '[network.default]\nipv4 = "10.77.0.0/24"\nipv6 = true\n[network.back]\nipv4 = "10.78.0.0/24"\n'
_FAILING = """
import errno, os, socket, sys
from pathlib import Path
import nftables
from solo5_systemd.network import taps
from solo5_systemd.networkd import main as program

plan, kind = Path({plan!r}), {kind!r}

def fails():
    '''Count down to the call that fails; without a plan, none does.'''
    try:
        with plan.open("r+") as file:  # the test may remove it meanwhile
            left = int(file.read())
            file.seek(0)
            file.write(f"{{left - 1:9}}")
    except FileNotFoundError:
        return False
    return left == 0

def send(original):
    def replaced(self, data, *rest):
        if self.family == socket.AF_NETLINK and self.proto == socket.NETLINK_ROUTE and fails():
            raise OSError(getattr(errno, kind), os.strerror(getattr(errno, kind)))
        return original(self, data, *rest)
    return replaced

def create(name, uid):
    if fails():
        raise OSError(getattr(errno, kind), os.strerror(getattr(errno, kind)))
    create_tap(name, uid)

def command(self, text):
    if text.startswith("list") or not fails():
        return cmd(self, text)
    return 1, "", "Error: Could not process rule: Operation not permitted\\n"

create_tap, cmd = taps.create_tap, nftables.Nftables.cmd
if kind == "EPERM":
    nftables.Nftables.cmd = command
elif kind == "EBUSY":
    taps.create_tap = create
else:
    socket.socket.send, socket.socket.sendto = send(socket.socket.send), send(socket.socket.sendto)
sys.exit(program.main())
"""
"""The service, of whose calls one fails: a message to rtnetlink, a tap, or a transaction of nftables."""

SENTENCES = {
    "ENOBUFS": "No buffer space available",
    "EBUSY": "Device or resource busy",
    "EPERM": "nftables refused a change: Error: Could not process rule: Operation not permitted",
}


@pytest.mark.parametrize("kind", SENTENCES)
async def test_each_step_of_an_attach_with_two_nics_is_undone(service: Service, tmp_path: Path, kind: str) -> None:
    """Each in turn fails once. A change of nftables that fails is repeated with all rules: then nothing has failed."""
    (service.settings / "solo5.toml").write_text(NETWORKS)
    plan = tmp_path / "plan"
    service.start(program=("-c", _FAILING.format(plan=str(plan), kind=kind)))
    await service.ready()
    limits = Limits(egress=egress(["192.0.2.0/24", "2001:db8::/32"]))
    nics = (nic("service", limits=limits), nic("admin", "back"))
    async with service.client() as client:
        had = await client.reserve(A, nics, (tcp(8080), udp(5353)))
        before = host_state()
        await client.attach(A)
        whole = host_state()
        await client.drop("a")
        failed = 0
        for step in range(100):
            assert await client.reserve(A, nics, had.ports) == had
            _write(plan, step)
            [error] = await asyncio.gather(client.attach(A), return_exceptions=True)
            if error is not None:
                failed += 1
                assert isinstance(error, HostError)
                assert SENTENCES[kind] in str(error), step
                plan.unlink()
                assert _found(had) == [], step
                await client.attach(A)
            left = int(plan.read_text()) if plan.exists() else -1
            plan.unlink(missing_ok=True)
            assert (await client.reservation(A), host_state()) == (had, whole), step
            await client.drop("a")
            assert host_state() == before, step
            if left >= 0:  # this step is behind the last one
                break
        assert failed >= 1


def _write(plan: Path, step: int) -> None:
    """Write it in one step: the service reads it at any time."""
    new = plan.with_suffix(".new")
    new.write_text(str(step))
    new.replace(plan)


def _found(reservation: Reservation) -> list[str]:
    """Return the taps of which the kernel has a link or a rule."""
    state = host_state()
    return [lease.tap for lease in reservation.leases if any(lease.tap in each for each in state)]


_ELSEWHERE = """
import os, sys
command = {command!r}
os.execvp(command[0], [*command, sys.executable, "-m", "solo5_systemd.networkd", *sys.argv[1:]])
"""
WITHOUT = {
    "a device for taps": ("mount --bind /dev/null /dev/net/tun", "tap s5-.*: Inappropriate ioctl for device"),
    "the module of taps": ("mount -t tmpfs none /dev/net", "tap s5-.*: No such file or directory"),
}


@pytest.mark.parametrize("lacking", WITHOUT)
async def test_a_service_without_what_it_needs_leaves_nothing(service: Service, lacking: str) -> None:
    mount, words = WITHOUT[lacking]
    command = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$0" "$@"']
    service.start(program=("-c", _ELSEWHERE.format(command=command)))
    await service.ready()
    async with service.client() as client:
        before = host_state()
        reservation = await client.reserve(A, (nic("service"), nic("admin")), (tcp(8080),))
        with pytest.raises(HostError, match=words):
            await client.attach(A)
        assert _found(reservation) == []
        await client.drop("a")
        assert (await client.reservations(), host_state()) == ((), before)


async def test_a_service_without_rights_ends_with_one_sentence(service: Service) -> None:
    command = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", "--"]
    service.start(program=("-c", _ELSEWHERE.format(command=command)))
    assert service.wait(10) == 1
    log = service.log.read_text()
    assert "Traceback" not in log
    assert "messages of the kernel cannot be received: Operation not permitted; expected CAP_NET_ADMIN" in log
