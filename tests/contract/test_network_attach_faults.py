"""Faults of the kernel during an attach, and modules that it lacks: one sentence, and nothing is left of it."""

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.contract import failing_networkd, without_nfnetlink
from tests.contract.netns import Outside, entered, link, run
from tests.contract.netservice import Client, Service, host_state, nic, tcp, udp

from solo5_systemd.base.dependencies import EXIT_CONFIG
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.host import probe
from solo5_systemd.host.probe import lacks_log, missing_modules
from solo5_systemd.network.kernel_events import AnnouncedPackets
from solo5_systemd.network.model import Limits, NicRequest, PortRequest, Reservation
from solo5_systemd.network.netlink import NETLINK_NETFILTER, NLM_CREATE, NetlinkSocket
from solo5_systemd.settings.egress import egress

A = TaskName("a")
FAILING = "from pathlib import Path\nfrom tests.contract.failing_networkd import *\n{}"
_BACK = '[network.back]\nipv4 = "10.78.0.0/24"\n'
_LIMITS = Limits(egress=egress(["192.0.2.0/24", "2001:db8::/32"]))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the NICs of a task are.

    Attributes:
        namespace: path of the network namespace of other programs that has the task; empty: the host's own.
        alike: the kinds of calls that its attach does without, or makes as one to the host's own networks.
    """

    settings: str
    nics: Sequence[NicRequest]
    ports: Sequence[PortRequest] = (tcp(8080), udp(5353))
    namespace: str = ""
    alike: Sequence[str] = ()

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of calls that fail here."""
        return [kind for kind in failing_networkd.FAULTS if kind not in self.alike]

    def state(self) -> tuple[str, ...]:
        """Return all state that the service may change; that of the host is compared at the end in any case."""
        if not self.namespace:
            return host_state()
        with entered(self.namespace):
            return host_state()


PLACES = {
    "networks": Place(
        settings=f'[network.default]\nipv4 = "10.77.0.0/24"\nipv6 = true\n{_BACK}',
        nics=(nic("service", limits=_LIMITS), nic("admin", "back")),
    ),
    "a joined bridge": Place(
        settings='[network.lan]\njoin = "br0"\nipv4 = "192.168.1.0/24"\npool = "192.168.1.9-192.168.1.99"\n' + _BACK,
        nics=(nic("admin", "lan"), nic("service", "back", limits=Limits(egress=egress(["192.0.2.0/24"])))),
        alike=["nfnetlink", "ioctl", "sysctl"],
    ),
    "the namespace of a group": Place(
        settings="",
        nics=(nic("service", "namespace", limits=_LIMITS), nic("admin", "namespace")),
        namespace="group",
        alike=["nfnetlink", "ioctl", "sysctl"],
    ),
}


@pytest.fixture
def place(service: Service, outside: Outside, br0: str, request: pytest.FixtureRequest) -> Place:
    """A place, with the bridge and the namespace of other programs that it needs; they stay as they were."""
    found = PLACES[request.param]
    service.configure(found.settings)
    outside.ip("link", "set", "lo", "up")
    outside.ip("route", "add", "default", "via", outside.host)
    outside.ip("address", "add", "2001:db8:f::2/64", "dev", f"{outside.link}-out", "nodad")
    return replace(found, namespace=outside.path if found.namespace else "")


@asynccontextmanager
async def attached_before(
    service: Service, place: Place, plan: Path
) -> AsyncIterator[tuple[Client, Reservation, tuple[str, ...]]]:
    """Give a client, a reservation that was attached and is again to be, and the state while it was attached."""
    await service.restart(change=FAILING.format(f"patch(Path({str(plan)!r}))"))
    before = place.state()
    async with service.client() as client:
        had = await _reserve(client, place)
        await client.attach(A)
        whole = place.state()
        await _drop(client)
        yield client, had, whole
        assert place.state() == before


@pytest.mark.parametrize("place", PLACES, indirect=True)
async def test_each_step_of_an_attach_is_undone(service: Service, place: Place, tmp_path: Path) -> None:
    """Each in turn fails once. A change of nftables that fails is repeated with all rules: then nothing has failed."""
    plan = tmp_path / "plan"
    async with attached_before(service, place, plan) as (client, had, whole):
        before = place.state()
        for kind in [each for each in place.kinds if each != "dump"]:  # a first attach lists nothing
            errors = []
            for step in range(200):
                assert await _reserve(client, place) == had
                error, left = await _attach(client, plan, f"{kind} {step}")
                if error is not None:
                    errors.append(str(error))
                    assert _found(had, place) == [], (kind, step, error)
                if again := error is None or step % 5 == 0:  # otherwise the reservation ends like this
                    await client.attach(A)
                    assert (await client.reservation(A), place.state()) == (had, whole), (kind, step)
                await _drop(client)
                assert again or place.state() == before, (kind, step)
                if left >= 0:  # this step is behind the last one
                    break
            assert errors, kind
            assert [text for text in errors if not _is_clear(text, kind)] == []


@pytest.mark.parametrize("place", PLACES, indirect=True)
async def test_a_fault_that_lasts_is_its_first_sentence_and_leaves_nothing_once_it_is_over(
    service: Service, place: Place, tmp_path: Path
) -> None:
    """Also where the undoing fails as well, of an attach by systemd, whose reservation has been released."""
    plan = tmp_path / "plan"
    async with attached_before(service, place, plan) as (client, had, whole):
        before = place.state()
        for kind in place.kinds:
            errors = []
            for step in range(0, 200, 7):
                assert await _reserve(client, place) == had
                if step % 2 or kind == "dump":
                    await client.attach(A)
                    await client.drop("a")
                error, _ = await _attach(client, plan, f"{kind} {step}+")
                if error is not None:
                    errors.append(str(error))
                    await client.attach(A)
                assert (await client.reservation(A), place.state()) == (had, whole), (kind, step, error)
                await _drop(client)
                assert place.state() == before, (kind, step, error)
                if error is None:
                    break
            assert errors, kind
            assert [text for text in errors if not _is_clear(text, kind)] == []


async def _reserve(client: Client, place: Place) -> Reservation:
    return await client.reserve(A, place.nics, place.ports, namespace=place.namespace)


async def _attach(client: Client, plan: Path, text: str) -> tuple[HostError | None, int]:
    """Attach the task with a plan for faults; return the error, and the calls left until the one that fails."""
    new = plan.with_suffix(".new")
    new.write_text(text)
    new.replace(plan)  # the service reads it at any time
    found = None
    try:
        await client.attach(A)
    except HostError as error:
        found = error
    left = int(plan.read_text().split()[1].rstrip("+"))
    plan.unlink()
    return found, left


async def _drop(client: Client) -> None:
    await client.drop("a")
    await client.forget(A)


def _is_clear(text: str, kind: str) -> bool:
    """Return whether an error is one of the project, with the kernel's word for it."""
    words = os.strerror(failing_networkd.FAULTS[kind])
    return words in text and "\n" not in text


def _found(reservation: Reservation, place: Place) -> list[str]:
    """Return the taps of which the kernel has a link or a rule."""
    with entered(place.namespace) if place.namespace else nullcontext():
        state = f"{socket.if_nameindex()} {run('nft', 'list', 'ruleset')}"
    return [lease.tap for lease in reservation.leases if lease.tap in state]


WITHOUT_MODULES = {
    "bridge": ("networks", r"solo5-\w+ cannot be made: Operation not supported; .*module bridge\. `modprobe bridge`"),
    "macvlan": ("networks", r"s5-\w+ cannot be made: Operation not supported; .* macvlan\. `modprobe macvlan`"),
    "tun": ("networks", r"tap s5-\w+ cannot be made: No such device; .* with module tun\. `modprobe tun` loads it"),
    "nf_tables": ("the namespace of a group", r"nftables cannot be read: Invalid argument\. `modprobe nf_tables`"),
    "nft_connlimit": (
        "the namespace of a group",
        r"nftables refused a change: .*No such file or directory\. .* `modprobe -a nf_tables .* nft_connlimit` loads",
    ),
}
_MISSING = [(place, module) for module, (place, _) in WITHOUT_MODULES.items()]


@pytest.mark.parametrize(("place", "module"), _MISSING, indirect=["place"])
async def test_a_kernel_without_a_module_is_one_sentence_that_names_it(
    service: Service, place: Place, module: str
) -> None:
    before = place.state()
    async with service.running(change=FAILING.format(f"remove({module!r})")) as client:
        for _ in range(2):
            had = await _reserve(client, place)
            with pytest.raises(HostError, match=WITHOUT_MODULES[module][1]):
                await client.attach(A)
            assert _found(had, place) == []
            await _drop(client)
            assert place.state() == before


WITHOUT = {
    "a device for taps": ("mount --bind /dev/null /dev/net/tun", "tap s5-.*: Inappropriate ioctl for device"),
    "the module of taps": (
        "mount -t tmpfs none /dev/net",
        "tap s5-.* cannot be made: No such file or directory; .* `modprobe tun`",
    ),
}


@pytest.mark.parametrize("lacking", WITHOUT)
async def test_a_service_without_what_it_needs_leaves_nothing(service: Service, lacking: str) -> None:
    mount, words = WITHOUT[lacking]
    command = ["unshare", "--mount", "--propagation=slave", "sh", "-c", f'{mount} && exec "$0" "$@"']
    async with service.running(within=command) as client:
        before = host_state()
        reservation = await client.reserve(A, (nic("service"), nic("admin")), (tcp(8080),))
        with pytest.raises(HostError, match=words):
            await client.attach(A)
        assert _found(reservation, Place(settings="", nics=())) == []
        await client.drop("a")
        assert (await client.reservations(), host_state()) == ((), before)


async def test_a_service_without_rights_ends_with_one_sentence(service: Service) -> None:
    command = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", "--"]
    service.start(within=command)
    assert service.wait(10) == 1
    log = service.log.read_text()
    assert "Traceback" not in log
    assert "messages of the kernel cannot be received: Operation not permitted; expected CAP_NET_ADMIN" in log


# -- A kernel that lacks a module: what `solo5ctl doctor`, the fingerprint and the service have to say of it ---------


_WITHOUT_NFNETLINK = Path(without_nfnetlink.__file__)
FOUND = ("bridge", "macvlan", "tun")


@pytest.mark.usefixtures("namespace")
def test_none_is_missing_here_and_looking_for_them_leaves_nothing() -> None:
    before = run("ip", "-o", "link")
    assert missing_modules() == []
    assert not lacks_log()
    assert run("ip", "-o", "link") == before
    assert not link("bridge")


@pytest.mark.parametrize("module", FOUND)
def test_one_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    failing_networkd.remove(module, monkeypatch.setattr)
    assert missing_modules() == [module]


@pytest.mark.usefixtures("namespace")
def test_the_error_of_a_missing_subsystem_is_that_of_this_kernel_for_one_that_no_module_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    netfilter = NetlinkSocket(NETLINK_NETFILTER)
    found = netfilter.run([(60 << 8 | 16, NLM_CREATE, bytes(4))])
    assert found == [errno.EINVAL]
    netfilter.close()

    def absent() -> AnnouncedPackets:
        raise OSError(found[0], "Invalid argument")

    monkeypatch.setattr(probe, "AnnouncedPackets", absent)
    assert lacks_log()


def test_doctor_continues_without_nfnetlink() -> None:
    """libnftables would end the process."""
    command = [sys.executable, str(_WITHOUT_NFNETLINK), "solo5ctl", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {fact["name"]: fact for fact in json.loads(done.stdout)}
    assert found["nftables"]["value"] == "unavailable"
    assert "`modprobe nf_tables` loads it" in found["nftables"]["advice"]
    assert "kernel modules" not in found
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_ends_without_nfnetlink_by_one_sentence(service: Service) -> None:
    """With the status of a missing dependency, after which systemd does not start it again and again."""
    service.start(within=[sys.executable, str(_WITHOUT_NFNETLINK)])
    assert service.wait(10) == EXIT_CONFIG
    log = service.log.read_text()
    assert "nftables cannot be used: Protocol not supported; expected a kernel with module nf_tables. `modprobe" in log
