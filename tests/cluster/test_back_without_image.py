"""An image that goes away between two boots: its task is not started, shows why, and starts once it is back."""

import json
from collections.abc import Iterator

import pytest
from tests.cluster.agents import CLIENTS
from tests.cluster.machines import Peer
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
FSTAB = "/var/stock /srv/late none bind,nofail\n/var/failing /srv/failing none bind,nofail\n"

_WRITE = """
mkdir -p /var/stock /var/failing /srv/late /srv/failing
for directory in /var/stock /var/failing; do cp "$1" $directory/image.spt; done
cp "$1" /srv/deleted.spt
"""
_DECLARE = """
printf '[Unikernel]\\nImage=%s\\nMemory=24M\\nPublish=%d:80\\nArgument={mirage}\\n%s\\n%s\\n' \
    "$2" "$3" "$4" '[Service]
Restart=always
[Install]
WantedBy=multi-user.target' >"/etc/solo5/$1.unikernel"
"""


@pytest.fixture
def peer() -> Iterator[Peer]:
    subject = CLIENTS[0]
    fstab = subject.ok("cat", "/etc/fstab")
    subject.ok("sh", "-euc", _WRITE, "sh", str(GUESTS / "net.spt"))
    subject.write("/etc/fstab", FSTAB)
    for port, name in zip(PORTS, NAMES, strict=True):
        tender = "" if name == "deleted" else "Tender=spt"  # as docs/declared.md has it for images that come late
        subject.ok("sh", "-euc", _DECLARE, "sh", name, IMAGES[name], str(port), tender)
    subject.ok("systemctl", "daemon-reload")
    subject.ok("systemctl", "start", "srv-late.mount", "srv-failing.mount")
    subject.ok("systemctl", "enable", *NAMES)
    yield subject
    subject.sh("systemctl", "disable", *NAMES)
    subject.sh("systemctl", "stop", *NAMES, "srv-late.mount", "srv-failing.mount")
    subject.sh("solo5ctl", "rm", "--force", *NAMES)
    subject.write("/etc/fstab", fstab)
    for name in NAMES:
        subject.sh("rm", "-rf", f"/etc/solo5/{name}.unikernel", f"/var/lib/solo5/declared/{name}.json")
    subject.sh("rm", "-rf", STOCK, "/var/failing", LATE, "/srv/failing", "/srv/deleted.spt")
    subject.sh("systemctl", "daemon-reload")
    subject.sh("systemctl", "reset-failed")


def addresses(peer: Peer, *names: str) -> dict[str, object]:
    return {each["name"]: each["nics"] for each in json.loads(peer.ok("solo5ctl", "inspect", "--json", *names))}


def shown(peer: Peer, unit: str, *properties: str) -> list[str]:
    words = [f"--property={name}" for name in properties]
    found = dict(line.partition("=")[::2] for line in peer.ok("systemctl", "show", *words, unit).splitlines())
    return [found[name] for name in properties]


def test_a_task_whose_image_is_gone_at_the_boot_shows_why_and_starts_once_it_is_back(peer: Peer) -> None:
    peer.ok("systemctl", "start", *NAMES)
    before = addresses(peer, *NAMES)
    peer.ok("rm", IMAGES["deleted"])
    peer.write("/etc/fstab", "none /srv/failing tmpfs nofail,no-such-option\n")
    peer.kill()
    peer.boot()
    eventually(lambda: shown(peer, "present.service", "ActiveState") == ["active"], "the boot goes on without them")
    assert addresses(peer, "present") == {"present": before["present"]}
    for name, sentence in (
        ("deleted", "image '/srv/deleted.spt' does not exist."),
        ("unmounted", "image '/srv/late/image.spt' does not exist."),
        ("failed", "Dependency failed for failed.service"),
    ):
        eventually(lambda name=name: not pending(peer, name), f"the start of {name} is over")  # type: ignore[misc]
        assert sentence in status(peer, name)
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
    assert "is not what the unit file was made for" in status(peer, "deleted")
    assert "Run: systemctl daemon-reload" in status(peer, "deleted")
    peer.ok("systemctl", "daemon-reload")
    peer.ok("systemctl", "start", *NAMES)  # with the mounts
    assert addresses(peer, *NAMES) == before
    assert peer.ok("systemctl", "is-system-running").strip() == "running"


def status(peer: Peer, name: str) -> str:
    return peer.sh("systemctl", "status", "--no-pager", "--full", f"{name}.service").stdout


def pending(peer: Peer, name: str) -> bool:
    """Whether its start is under way still, or has not begun."""
    jobs = peer.ok("systemctl", "list-jobs", "--no-legend", "--plain")
    return f"{name}.service" in jobs or "failed" not in status(peer, name).lower()
