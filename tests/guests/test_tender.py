"""What a launcher sees of a tender: the same for the real ones and their stand-ins."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.guests.namespace import Namespace
from tests.guests.tenders import Tender


def refused(tender: Tender, *words: str | Path) -> str:
    ended = tender.call(*words)
    assert (ended.status, ended.stdout) == (1, "")
    return ended.stderr


def test_version(tender: Tender) -> None:
    ended = tender.call("--unknown", "--version")
    assert (ended.status, ended.stdout) == (0, "")
    first, second = ended.stderr.splitlines()
    assert first.startswith(f"solo5-{tender.abi} tender, version ")
    assert second == "ABI version 2"


def test_image_of_the_other_target(tender: Tender) -> None:
    other = Tender(abi={"hvt": "spt", "spt": "hvt"}[tender.abi], scratch=tender.scratch).image("hello")
    assert f"Executable is not for the solo5-{tender.abi} target" in refused(tender, other)


def test_unknown_option(tender: Tender) -> None:
    message = refused(tender, "--unknown", tender.image("hello"))
    assert "Invalid option: `--unknown'" in message
    assert "usage: " in message


def test_options_behind_the_image_are_the_guests(tender: Tender) -> None:
    ended = tender.call(tender.image("hello"), "--mem=8", "--", "x")
    assert ended.lines[0] == "arguments: '--mem=8 -- x'"


def test_command_line_has_a_limit(tender: Tender) -> None:
    assert len(tender.run("hello", "x" * 8191).lines[0]) == len("arguments: ''") + 8191
    message = refused(tender, tender.image("hello"), "x" * 8100, "y" * 91)
    assert "Guest command line too long (max=8191 characters)" in message


def test_memory_of_hvt(tmp_path: Path) -> None:
    tender = Tender(abi="hvt", scratch=tmp_path)
    ended = tender.call("--mem=7", tender.image("hello"))
    assert (ended.status, ended.stderr) == (0, "solo5-hvt: adjusting memory to 6291456 bytes\n")
    assert "exceeds the max size" in refused(tender, "--mem=4098", tender.image("hello"))
    assert tender.call("--mem=4096", tender.image("hello")).status == 0


def test_memory_size_below_the_image(tmp_path: Path) -> None:
    tender = Tender(abi="spt", scratch=tmp_path)
    refused(tender, "--mem=1", tender.image("hello"))


# --- devices ---


def test_device_not_declared(tender: Tender) -> None:
    message = refused(tender, "--block:other=/dev/null", tender.image("disk"))
    assert "Resource not declared in manifest: 'other'" in message
    assert "Invalid option: " in message


def test_every_missing_device_is_named(tender: Tender) -> None:
    message = refused(tender, tender.image("netdisk"))
    assert "Device 'service' of type NET_BASIC declared but not attached." in message
    assert "Device 'storage' of type BLOCK_BASIC declared but not attached." in message
    assert "All declared devices must be attached" in message


@pytest.mark.parametrize(("size", "message"), [(0, "must be at least 1 block"), (511, "must be block aligned")])
def test_disk_of_bad_size(tender: Tender, tmp_path: Path, size: int, message: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(size))
    assert f"storage: Backing storage {message}" in refused(
        tender, f"--block:storage={path}", tender.image("disk")
    ).replace("storage size", "storage")


@pytest.mark.parametrize("sector", ["256", "513", "65536"])
def test_bad_sector_size(tender: Tender, sector: str) -> None:
    message = refused(tender, f"--block-sector-size:storage={sector}", tender.image("disk"))
    assert "Block size must be a multiple of 2" in message


@pytest.mark.parametrize(
    ("interface", "reason"),
    [
        ("missing", "No such file or directory"),
        ("tapdown", "Network is down"),
        ("a" * 16, "File name too long"),
        ("lo", "Invalid argument"),
    ],
)
def test_interface_that_cannot_be_attached(
    net_tender: Tender, namespace: Namespace, interface: str, reason: str
) -> None:
    namespace.tap("tapdown", up=False)
    namespace.ip("link", "set", "lo", "up")
    message = refused(net_tender, f"--net:service={interface}", net_tender.image("net"))
    assert f"Could not attach interface: {interface}: {reason}" in message


def test_inherited_descriptor_cannot_be_attached(net_tender: Tender) -> None:
    message = refused(net_tender, "--net:service=@0", net_tender.image("net"))
    assert "Could not attach interface: @0: Success" in message


def test_busy_interface(net_tender: Tender) -> None:
    with net_tender.running("net", options=("--net:service=tap0",)) as guest:
        guest.wait_for("serving")
        message = refused(net_tender, "--net:service=tap0", net_tender.image("net"))
    assert "Could not attach interface: tap0: Device or resource busy" in message


def test_complaint_behind_memory_comes_twice(net_tender: Tender) -> None:
    message = refused(net_tender, "--mem=8", "--net:service=missing", net_tender.image("net"))
    assert message.count("Could not attach interface") == 2


def test_tap_deleted_under_the_guest(net_tender: Tender, namespace: Namespace) -> None:
    arguments = ("--ipv4-gateway=10.0.0.1", "--spoof-ip=10.0.0.9")
    with net_tender.running("net", *arguments, options=("--net:service=tap0",)) as guest:
        guest.wait_for("serving")
        namespace.ip("link", "delete", "tap0")
        if net_tender.abi == "hvt":
            assert guest.process.wait(20) == 1
            assert guest.errors.read_text().startswith("Fatal error when ")
        else:
            time.sleep(2)
            assert guest.process.poll() is None


# --- life and death ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop(tender: Tender, number: int) -> None:
    with tender.running("sleeper") as guest:
        guest.wait_for("sleeping")
        status = guest.stop(number)
    if tender.abi == "spt":
        assert status == -number
    else:
        assert (status, guest.errors.read_text()) == (1, f"solo5-hvt: Exiting on signal {int(number)}\n")


def test_hangup_is_not_caught(tender: Tender) -> None:
    with tender.running("sleeper") as guest:
        guest.wait_for("sleeping")
        assert guest.stop(signal.SIGHUP) == -signal.SIGHUP


def status_of(process: subprocess.Popen[bytes]) -> dict[str, str]:
    text = Path(f"/proc/{process.pid}/status").read_text()
    return {key: value for key, _, value in (line.partition(":\t") for line in text.splitlines())}


@pytest.mark.parametrize(("device", "ends_by"), [("", -signal.SIGKILL), ("--net:service=tap0", 1)])
def test_console_failure_leaves_a_zombie_leader(
    tmp_path: Path, namespace: Namespace, device: str, ends_by: int
) -> None:
    """hvt: the filter kills the thread that asserts, and the others keep the process."""
    namespace.tap("tap0")
    tender = Tender(abi="hvt", scratch=tmp_path, namespace=namespace.name)
    words = tender.command("--mem=8", *filter(None, [device]), tender.image("net" if device else "sleeper"))
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(words, stdout=full, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while not status_of(process)["State"].startswith("Z"):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert process.poll() is None
        assert int(status_of(process)["Threads"]) > 1
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        if ends_by != 1:
            assert process.poll() is None
            process.kill()
        assert process.wait(20) == ends_by
    finally:
        process.kill()
        process.wait(20)


def test_console_failure_is_nothing_to_spt(tmp_path: Path) -> None:
    tender = Tender(abi="spt", scratch=tmp_path)
    with Path("/dev/full").open("wb") as full:
        words = tender.command(tender.image("hello"), "exit=3")
        assert subprocess.run(words, stdout=full, check=False, timeout=20).returncode == 3


def test_sandbox_is_closed(tender: Tender) -> None:
    with tender.running("sleeper") as guest:
        guest.wait_for("sleeping")
        status = status_of(guest.process)
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert (int(status["Threads"]) > 1) == (tender.abi == "hvt")
