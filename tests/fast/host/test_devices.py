import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from solo5_systemd.errors import HostError
from solo5_systemd.host.devices import groups_for
from solo5_systemd.host.tenders import TenderPath
from solo5_systemd.image.manifest import Target


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """Mode and group of each device node, in place of the host's."""
    nodes = {"/dev/kvm": (stat.S_IFCHR | 0o660, 104), "/dev/net/tun": (stat.S_IFCHR | 0o666, 0)}

    def status(path: str) -> SimpleNamespace:
        if path not in nodes:
            raise FileNotFoundError(2, "No such file or directory", path)
        return SimpleNamespace(st_mode=nodes[path][0], st_gid=nodes[path][1])

    monkeypatch.setattr("solo5_systemd.host.devices.os", SimpleNamespace(stat=status))
    monkeypatch.setattr("grp.getgrgid", {104: SimpleNamespace(gr_name="kvm")}.__getitem__)
    return nodes


@pytest.mark.parametrize(
    "target, nics, groups",
    [(Target.HVT, False, ("kvm",)), (Target.HVT, True, ("kvm",)), (Target.SPT, True, ()), (Target.SPT, False, ())],
)
async def test_a_task_gets_the_groups_that_its_nodes_want(
    nodes: dict[str, tuple[int, int]], target: Target, groups: tuple[str, ...], *, nics: bool
) -> None:
    assert groups_for(target, nics=nics) == groups
    assert await TenderPath([], Path("/run")).groups(target, nics=nics) == groups


def test_a_node_that_a_target_does_not_open_does_not_matter(nodes: dict[str, tuple[int, int]]) -> None:
    nodes.clear()
    assert groups_for(Target.SPT, nics=False) == ()


@pytest.mark.parametrize(
    "node, state, words",
    [
        ("/dev/kvm", None, "/dev/kvm does not exist: .* run an spt image"),
        ("/dev/net/tun", None, "/dev/net/tun does not exist: .*modprobe tun"),
        ("/dev/kvm", (stat.S_IFREG | 0o666, 0), "/dev/kvm is not a character device"),
        ("/dev/kvm", (stat.S_IFCHR | 0o600, 0), "has mode 0600 and group 0: .*chgrp kvm"),
        ("/dev/kvm", (stat.S_IFCHR | 0o660, 0), "has mode 0660 and group 0"),
        ("/dev/net/tun", (stat.S_IFCHR | 0o644, 0), "has mode 0644 .*chmod 0666"),
        ("/dev/kvm", (stat.S_IFCHR | 0o660, 993), "belongs to group 993, which has no name: .*groupadd"),
    ],
)
def test_a_node_that_tenders_cannot_open_is_named_with_what_to_do(
    nodes: dict[str, tuple[int, int]], node: str, state: tuple[int, int] | None, words: str
) -> None:
    nodes.pop(node)
    if state:
        nodes[node] = state
    with pytest.raises(HostError, match=words):
        groups_for(Target.HVT, nics=True)
