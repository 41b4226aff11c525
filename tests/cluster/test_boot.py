"""The machines of `tests/machine/boot --machines`."""

import pytest
from tests.cluster.agents import CLIENTS, SERVER
from tests.cluster.machines import request
from tests.machine.conftest import ok, sh


def reaches(host: str) -> bool:
    return sh("ping", "-c1", "-W1", host).returncode == 0


def test_machines_have_names_addresses_and_identities_of_their_own() -> None:
    assert ok("hostname").strip() == SERVER
    assert [peer.ok("hostname").strip() for peer in CLIENTS] == [peer.name for peer in CLIENTS]
    assert len({peer.ok("cat", "/etc/machine-id", "/proc/sys/kernel/random/boot_id") for peer in CLIENTS}) == 3
    for peer in CLIENTS:
        assert reaches(peer.name)
        peer.ok("ping", "-c1", "-W1", SERVER)


def test_a_killed_machine_boots_again_with_its_disk_and_an_empty_run() -> None:
    peer, boot = CLIENTS[0], CLIENTS[0].boot_id()
    peer.write("/var/kept", "kept")
    peer.write("/run/lost", "lost")
    peer.kill()
    assert not reaches(peer.name)
    peer.boot()
    assert reaches(peer.name)
    assert peer.ok("cat", "/var/kept") == "kept"
    assert peer.sh("test", "-e", "/run/lost").returncode == 1
    assert peer.boot_id() != boot


def test_an_unplugged_machine_is_cut_off_and_still_takes_requests() -> None:
    cut, other = CLIENTS[0], CLIENTS[1]
    with cut.unplugged():
        assert not reaches(cut.name)
        assert cut.sh("ping", "-c1", "-W1", other.name).returncode == 1
        assert reaches(other.name)
    assert reaches(cut.name)


@pytest.mark.parametrize(
    ("do", "machine", "reason"),
    [
        ("boot", CLIENTS[0].name, "client1 is running already"),
        ("kill", SERVER, "no other machine “server” is running; these are: client1 client2 client3"),
        ("boot", "client4", "no machine “client4”"),
        ("dance", CLIENTS[0].name, "is no request"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(do: str, machine: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        request(do, machine)


def test_a_command_that_takes_too_long_is_ended() -> None:
    done = CLIENTS[0].sh("sleep", "60", seconds=0.5)
    assert done.returncode == 124
