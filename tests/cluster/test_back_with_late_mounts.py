"""At a boot, unit files are written before anything is mounted: image and tender may be there at the start only."""

from collections.abc import Iterator

import pytest
from tests.cluster.agents import CLIENTS
from tests.cluster.machines import Peer
from tests.machine.conftest import GUESTS, eventually

STOCK, LATE = "/var/stock", "/srv/late"
TENDERS = f"{LATE}/bin"
FSTAB = f"{STOCK} {LATE} none bind,nofail\n"
SETTINGS = "/etc/solo5/late.toml"
TASKS = {
    "plain": f"[Unikernel]\nImage={LATE}/sleeper.spt\nTender=spt\n",  # without NICs, which cannot be read early
    "web": f"[Unikernel]\nImage={GUESTS}/net.spt\nMemory=24M\nArgument={{mirage}}\n",
}
INSTALL = "[Install]\nWantedBy=multi-user.target\n"

_WRITE = """
mkdir -p /var/stock/bin /srv/late
cp /usr/local/bin/solo5-* /var/stock/bin/
cp "$1/sleeper.spt" /var/stock/
"""


@pytest.fixture
def peer() -> Iterator[Peer]:
    subject = CLIENTS[0]
    fstab = subject.ok("cat", "/etc/fstab")
    subject.ok("sh", "-euc", _WRITE, "sh", str(GUESTS))
    subject.write("/etc/fstab", FSTAB)
    subject.write(SETTINGS, f'tender_paths = ["{TENDERS}"]\n')
    with subject.declared({name: text + INSTALL for name, text in TASKS.items()}, STOCK, SETTINGS):
        yield subject
        subject.sh("systemctl", "stop", *TASKS, "srv-late.mount")
        subject.write("/etc/fstab", fstab)
    subject.sh("rm", "-rf", LATE)


def test_tasks_whose_tender_or_image_is_mounted_late_are_back_and_without_it_show_why(peer: Peer) -> None:
    peer.kill()
    peer.boot()
    for name in TASKS:
        eventually(lambda name=name: peer.state(name) == "active", f"{name} is back")  # type: ignore[misc]
    assert "CGroup" in peer.status("web")
    assert f"{TENDERS}/solo5-spt" in peer.status("web")
    # Once its file system is not mounted any more, the host has no tender.
    peer.write("/etc/fstab", "")
    peer.kill()
    peer.boot()
    sentence = f"solo5-spt is not in {TENDERS}: expected the tender there."
    eventually(lambda: sentence in peer.status("web"), "the unit shows what is missing")
    assert peer.state("web") == "inactive"
    assert "image '/srv/late/sleeper.spt' does not exist" in peer.status("plain")
    peer.ok("cp", "--recursive", f"{STOCK}/bin", f"{STOCK}/sleeper.spt", LATE)
    peer.ok("systemctl", "start", *TASKS)  # without a daemon-reload
    assert [peer.state(name) for name in TASKS] == ["active", "active"]
