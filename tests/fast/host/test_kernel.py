import errno
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.base.names import NetworkName
from solo5_systemd.host import kernel
from solo5_systemd.host.checks import Kernel
from solo5_systemd.host.kernel import kvm_problem, read_kernel
from solo5_systemd.settings.network import Ipv6, NetworkSettings


def chain(family: str, table: str, name: str, **more: object) -> dict[str, Any]:
    return {"chain": {"family": family, "table": table, "name": name, "handle": 1, **more}}


LISTING = [
    {"metainfo": {"version": "1.0.6"}},
    chain("ip", "filter", "FORWARD", type="filter", hook="forward", prio=0, policy="drop"),
    chain("ip", "filter", "INPUT", type="filter", hook="input", prio=0, policy="drop"),
    chain("ip", "filter", "DOCKER-USER"),
    chain("inet", "firewall", "forward", type="filter", hook="forward", prio=0, policy="drop"),
    chain("inet", "other", "forward", type="filter", hook="forward", prio=0, policy="accept"),
    chain("bridge", "filter", "FORWARD", type="filter", hook="forward", prio=0, policy="drop"),
    chain("ip6", "filter", "FORWARD", type="filter", hook="forward", prio=0, policy="drop"),
]


@pytest.fixture
def nftables(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, object], None]:
    """Replace libnftables by a fixed reply."""

    def answer(code: int, listing: Any) -> None:
        class Nftables:
            def set_json_output(self, on: bool) -> None:
                assert on

            set_stateless_output = set_json_output

            def json_cmd(self, command: dict[str, list[dict[str, Any]]]) -> tuple[int, object, str]:
                [what] = (each["list"] for each in command["nftables"])
                if code or what == {"chains": None}:
                    return code, {"nftables": listing} if code == 0 else {}, ""
                if "chain" in what:
                    return 0, {"nftables": [each for each in listing if "rule" in each]}, ""
                table = (what["table"]["family"], what["table"]["name"])
                bodies = ((each, body) for each in listing for body in each.values())
                found = [each for each, body in bodies if (body.get("family"), body.get("table")) == table]
                return 0, {"nftables": found}, ""

        module = ModuleType("nftables")
        module.Nftables = Nftables  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "nftables", module)

    return answer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, content in {"vm/mmap_min_addr": "65536", "vm/overcommit_memory": "0"}.items():
        file = tmp_path / "proc/sys" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    (tmp_path / "run").mkdir()
    return tmp_path


def test_settings_and_rules_are_read(root: Path, nftables: Callable[[int, object], None]) -> None:
    nftables(0, LISTING)
    bridge = root / "proc/sys/net/bridge/bridge-nf-call-iptables"
    bridge.parent.mkdir(parents=True)
    bridge.write_text("1\n")
    found = read_kernel(root, [NetworkSettings(name=NetworkName("default"), bridge="solo5-default")])
    assert (found.mmap_min_addr, found.overcommit, found.br_netfilter) == (65536, 0, True)
    assert [each.name for each in found.dropping_chains or ()] == ["ip filter FORWARD", "inet firewall forward"]
    assert found.run_free is not None


@pytest.mark.parametrize(
    ("file", "program", "remedy"),
    [
        ("ip_tables_names", "iptables-legacy-save", "iptables-legacy"),
        ("ip6_tables_names", "ip6tables-legacy-save", "ip6tables-legacy"),
    ],
)
def test_older_rules_count_where_they_are_used(
    root: Path,
    nftables: Callable[[int, object], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    file: str,
    program: str,
    remedy: str,
) -> None:
    nftables(0, [])
    network = [NetworkSettings(name=NetworkName("default"), bridge="solo5-default", ipv6=Ipv6())]
    names = root / "proc/net" / file
    names.parent.mkdir()
    names.write_text("filter\n")
    monkeypatch.setattr(kernel, "_PROGRAMS", saving(tmp_path, program, ":FORWARD DROP [0:0]\n"))
    [found] = read_kernel(root, network).dropping_chains or ()
    assert found.remedy[0] == f"{remedy} -I FORWARD -i solo5-default -j ACCEPT"
    names.write_text("nat\n")
    assert read_kernel(root, network).dropping_chains == []
    names.write_text("filter\n")
    monkeypatch.setattr(kernel, "_PROGRAMS", str(tmp_path / "nowhere"))
    assert read_kernel(root, network).dropping_chains == []


def saving(directory: Path, name: str, rules: str) -> str:
    """Return a directory of programs, of which one prints rules."""
    program = directory / "programs" / name
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{rules}END\n")
    program.chmod(0o755)
    return str(program.parent)


def test_what_cannot_be_read_is_unknown(tmp_path: Path, nftables: Callable[[int, object], None], root: Path) -> None:
    nftables(-1, None)
    assert read_kernel(tmp_path / "nowhere") == Kernel()
    (root / "proc/sys/vm/overcommit_memory").write_text("lots")
    assert read_kernel(root).overcommit is None


def test_a_host_without_the_library_has_no_nftables(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nftables", None)
    assert read_kernel(root).dropping_chains is None


def test_kvm_is_usable_where_it_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "kvm"
    node.touch()
    monkeypatch.setattr(kernel, "KVM", str(node))
    assert kvm_problem() == ""
    monkeypatch.setattr("os.open", failing(errno.EACCES))
    assert kvm_problem() == f"{node} cannot be opened: Permission denied."
