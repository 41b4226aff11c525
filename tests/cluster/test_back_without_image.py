"""An image that goes away between two boots: its task is not started, shows why, and starts once it is back."""

from collections.abc import Iterator

import pytest
from tests.cluster.agents import CLIENTS
from tests.cluster.machines import Peer, web
from tests.machine.conftest import GUESTS, eventually

STOCK, LATE = "/var/stock", "/srv/late"
NAMES = ("deleted", "unmounted", "failed", "present")
IMAGES = {
    "deleted": "/srv/deleted.spt",
    "unmounted": f"{LATE}/image.spt",
    "failed": "/srv/failing/image.spt",
    "present": str(GUESTS / "net.spt"),
}
"""A file that is deleted; one below a mount that is not in fstab any more; one below a mount that fails."""

PORTS = range(9100, 9100 + len(NAMES))
MOUNTS = ("srv-late.mount", "srv-failing.mount")
FSTAB = "/var/stock /srv/late none bind,nofail\n/var/failing /srv/failing none bind,nofail\n"

_WRITE = """
mkdir -p /var/stock /var/failing /srv/late /srv/failing
for directory in /var/stock /var/failing; do cp "$1" $directory/image.spt; done
cp "$1" /srv/deleted.spt
"""


@pytest.fixture
def peer() -> Iterator[Peer]:
    subject = CLIENTS[0]
    fstab = subject.ok("cat", "/etc/fstab")
    subject.ok("sh", "-euc", _WRITE, "sh", str(GUESTS / "net.spt"))
    subject.write("/etc/fstab", FSTAB)
    again = ("[Service]", "Restart=always")
    texts = {
        # As docs/declared.md has it for images that come late.
        name: web(port, *(() if name == "deleted" else ("Tender=spt",)), *again, image=IMAGES[name])
        for port, name in zip(PORTS, NAMES, strict=True)
    }
    with subject.declared(texts, STOCK, "/var/failing", "/srv/deleted.spt"):
        subject.ok("systemctl", "start", *MOUNTS)
        yield subject
        subject.sh("systemctl", "stop", *NAMES, *MOUNTS)
        subject.write("/etc/fstab", fstab)
    subject.sh("rm", "-rf", LATE, "/srv/failing")


def shown(peer: Peer, unit: str, *properties: str) -> list[str]:
    words = [f"--property={name}" for name in properties]
    found = dict(line.partition("=")[::2] for line in peer.ok("systemctl", "show", *words, unit).splitlines())
    return [found[name] for name in properties]


def test_a_task_whose_image_is_gone_at_the_boot_shows_why_and_starts_once_it_is_back(peer: Peer) -> None:
    peer.ok("systemctl", "start", *NAMES)
    before = peer.nics(*NAMES)
    peer.ok("rm", IMAGES["deleted"])
    peer.write("/etc/fstab", "none /srv/failing tmpfs nofail,no-such-option\n")
    peer.kill()
    peer.boot()
    eventually(lambda: shown(peer, "present.service", "ActiveState") == ["active"], "the boot goes on without them")
    assert peer.nics("present") == {"present": before["present"]}
    for name, sentence in (
        ("deleted", "image '/srv/deleted.spt' does not exist."),
        ("unmounted", "image '/srv/late/image.spt' does not exist."),
        ("failed", "Dependency failed for failed.service"),
    ):
        eventually(lambda name=name: not pending(peer, name), f"the start of {name} is over")  # type: ignore[misc]
        assert sentence in peer.status(name)
        # Restart=always does not repeat what failed before the tender was executed.
        assert shown(peer, f"{name}.service", "ActiveState", "NRestarts") == ["inactive", "0"]
        assert shown(peer, f"solo5-prepare@{name}.service", "NRestarts") == ["0"]
    assert peer.ok("ls", "/run/solo5/network/tasks").split() == ["present.json"]
    _, user = peer.ok("cat", "/run/solo5/users/registry").splitlines()
    assert user.split()[0] == "present"
    rules = peer.ok("nft", "list", "ruleset")
    assert [f" {port} " in rules for port in PORTS] == [False, False, False, True]
    assert "/tender" not in "".join(line for line in peer.ok("mount").splitlines(True) if "/present/" not in line)
    # The image is back.
    peer.ok("cp", str(GUESTS / "net.spt"), IMAGES["deleted"])
    peer.write("/etc/fstab", FSTAB)
    # Its kind is assumed where it cannot be read at a daemon-reload, or at the boot.
    assert peer.sh("systemctl", "start", "deleted").returncode == 1
    assert "is not what the unit file was made for" in peer.status("deleted")
    assert "Run: systemctl daemon-reload" in peer.status("deleted")
    peer.ok("systemctl", "daemon-reload")
    peer.ok("systemctl", "start", *NAMES)  # with the mounts
    assert peer.nics(*NAMES) == before
    assert peer.ok("systemctl", "is-system-running").strip() == "running"


def pending(peer: Peer, name: str) -> bool:
    """Whether its start is under way still, or has not begun."""
    jobs = peer.ok("systemctl", "list-jobs", "--no-legend", "--plain")
    return f"{name}.service" in jobs or "failed" not in peer.status(name).lower()
