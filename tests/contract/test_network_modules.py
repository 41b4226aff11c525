"""A kernel that lacks a module: what `solo5ctl doctor`, the fingerprint and the service have to say of it."""

import errno
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract import failing_networkd, without_nfnetlink
from tests.contract.netns import link, run
from tests.contract.netservice import Service

from solo5_systemd.dependencies import EXIT_CONFIG
from solo5_systemd.host.modules import missing_modules
from solo5_systemd.network.modules import REDIRECTION
from solo5_systemd.network.raw_netlink import NETLINK_NETFILTER, NETLINK_ROUTE, NLM_CREATE, NetlinkSocket, Request
from solo5_systemd.network.veth_taps import redirection

_WITHOUT_NFNETLINK = Path(without_nfnetlink.__file__)
FOUND = {
    "bridge": ["bridge"],
    "veth": ["veth"],
    "sch_ingress": [*REDIRECTION],
    "cls_u32": [*REDIRECTION],
    "act_mirred": [*REDIRECTION],
    "tun": ["tun"],
}


@pytest.mark.usefixtures("namespace")
def test_none_is_missing_here_and_looking_for_them_leaves_nothing() -> None:
    before = run("ip", "-o", "link")
    assert missing_modules() == []
    assert run("ip", "-o", "link") == before
    assert not link("bridge")


@pytest.mark.parametrize("module", FOUND)
def test_one_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    failing_networkd.remove(module, monkeypatch.setattr)
    assert missing_modules() == FOUND[module]


@pytest.mark.usefixtures("namespace")
def test_the_errors_of_missing_modules_are_those_of_this_kernel_for_kinds_that_no_module_has() -> None:
    run("ip", "link", "add", "v", "type", "veth", "peer", "name", "w")
    number = socket.if_nametoindex("v")
    qdisc, rule = redirection(number, number)

    def renamed(request: Request, module: str) -> Request:
        kind, flags, payload = request
        changed = payload.replace(*failing_networkd.RENAMED[module])
        assert changed != payload
        return kind, flags, changed

    route = NetlinkSocket(NETLINK_ROUTE)
    requests = [renamed(qdisc, "sch_ingress"), qdisc, renamed(rule, "cls_u32"), renamed(rule, "act_mirred"), rule]
    assert route.run(requests) == [errno.ENOENT, 0, errno.ENOENT, errno.ENOENT, 0]
    route.close()
    netfilter = NetlinkSocket(NETLINK_NETFILTER)
    assert netfilter.run([(60 << 8 | 16, NLM_CREATE, bytes(4))]) == [errno.EINVAL]
    netfilter.close()


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
    elsewhere += f"{sys.executable!r}, '-m', 'solo5_systemd.networkd', *sys.argv[1:]])"
    service.start(program=("-c", elsewhere))
    assert service.wait(10) == EXIT_CONFIG
    log = service.log.read_text()
    assert "nftables cannot be used: Protocol not supported; expected a kernel with module nf_tables. `modprobe" in log
