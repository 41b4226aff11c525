"""A kernel that lacks a module: what `solo5ctl doctor`, the fingerprint and the service have to say of it."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract import failing_networkd, without_nfnetlink
from tests.contract.netns import link, run
from tests.contract.netservice import Service

from solo5_systemd.base.dependencies import EXIT_CONFIG
from solo5_systemd.host import probe
from solo5_systemd.host.probe import lacks_log, missing_modules
from solo5_systemd.network.kernel_events import AnnouncedPackets
from solo5_systemd.network.netlink import NETLINK_NETFILTER, NLM_CREATE, NetlinkSocket

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


def test_doctor_goes_on_without_nfnetlink() -> None:
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
    elsewhere = f"import os, sys; os.execv({sys.executable!r}, [{sys.executable!r}, {str(_WITHOUT_NFNETLINK)!r}, "
    elsewhere += f"{sys.executable!r}, '-m', 'tests.contract.placed', *sys.argv[1:]])"
    service.start(program=("-c", elsewhere))
    assert service.wait(10) == EXIT_CONFIG
    log = service.log.read_text()
    assert "nftables cannot be used: Protocol not supported; expected a kernel with module nf_tables. `modprobe" in log
