from dataclasses import replace

import pytest
from tests.support.fakes.images import disk, planned, stored

from solo5_systemd.base.names import Target
from solo5_systemd.storage.model import Disk
from solo5_systemd.unit.confinement import FILTER_SIZE, SYSTEM_CALLS, confinement
from solo5_systemd.unit.tender import LIBRARIES, Tender

TENDER, IMAGE = "/usr/bin/solo5-x", "/images/x"
LOADS = ("/lib64/ld.so", "/lib/libc.so.6")


def settings(
    target: Target = Target.HVT,
    *,
    nics: str = "",
    disks: tuple[Disk, ...] = (),
    groups: tuple[str, ...] = (),
    loads: tuple[str, ...] = LOADS,
    systemd: int = 257,
) -> dict[str, object]:
    declared = " ".join(each.disk for each in disks)
    parts = replace(
        planned(),
        image=replace(stored(target, nics=nics, disks=declared), path=IMAGE),
        tender=Tender(path=TENDER, target=target, version="0", abi_version=2, loads=loads),
        disks=disks,
        groups=groups,
        systemd=systemd,
    )
    properties = confinement(parts, 70123)
    by_name = {each.name: each.value for each in properties}
    assert len(by_name) == len(properties), "a property is sent twice"
    return by_name


def test_no_file_of_a_disk_grows_beyond_the_largest_one() -> None:
    one, two = (replace(disk(name), size=size) for name, size in (("one", 1 << 20), ("two", 1 << 30)))
    assert settings(disks=(one, two))["LimitFSIZE"] == 1 << 30
    assert settings(disks=(replace(one, size=512),))["LimitFSIZE"] == FILTER_SIZE, "else no tender starts"
    for others in ((), (disk("unknown"),), (one, replace(disk("vda", device=(254, 0)), size=0))):
        assert "LimitFSIZE" not in settings(disks=others)


@pytest.mark.parametrize(
    "target, nics, nodes",
    [
        (Target.HVT, "", ["/dev/kvm"]),
        (Target.HVT, "net", ["/dev/kvm", "/dev/net/tun"]),
        (Target.SPT, "", []),
        (Target.SPT, "net", ["/dev/net/tun"]),
    ],
)
def test_a_task_opens_only_the_devices_that_its_image_needs(target: Target, nics: str, nodes: list[str]) -> None:
    found = settings(target, nics=nics)
    assert found["DevicePolicy"] == "closed"
    assert found["DeviceAllow"] == [(node, "rw") for node in nodes]
    # An empty list would take back the read-only binds as well.
    assert found.get("BindPaths", []) == [(node, node, False, 0) for node in nodes]
    assert ("BindPaths" in found) == bool(nodes)


def test_where_the_libraries_are_not_known_their_directories_are_bound_with_what_is_mounted_below() -> None:
    bound = settings(loads=LIBRARIES)["BindReadOnlyPaths"]
    assert isinstance(bound, list)
    assert bound[:-2] == [(path, path, True, 0x4000) for path in LIBRARIES]


def test_only_the_tender_and_what_it_loads_can_be_executed() -> None:
    found = settings(disks=(disk("a"),))
    assert found["NoExecPaths"] == ["+/", f"+{IMAGE}", "+/run/solo5-disks/a"]
    assert found["ExecPaths"] == [f"-+{path}" for path in (TENDER, *LOADS)]


def test_settings_that_a_systemd_does_not_know_are_not_sent_to_it() -> None:
    newer = {"PrivateTmpEx": "disconnected", "ProtectControlGroupsEx": "strict", "BindLogSockets": False}
    found, older = settings(), settings(systemd=256)
    assert {key: found.pop(key) for key in newer} == newer
    assert older.pop("ProtectControlGroups") is True
    assert found == older, "what is older is the same"


def test_only_spt_makes_written_memory_executable_and_no_task_leaves_a_core_file() -> None:
    assert [settings(target)["MemoryDenyWriteExecute"] for target in (Target.HVT, Target.SPT)] == [True, False]
    assert settings()["LimitCORE"] == 0


@pytest.mark.parametrize("nics, families", [("", []), ("net", ["AF_INET", "AF_NETLINK"])])
def test_a_task_has_the_hosts_network_only_for_its_tap(nics: str, families: list[str]) -> None:
    found = settings(nics=nics)
    assert found["RestrictAddressFamilies"] == (True, families)
    assert found["PrivateNetwork"] is (not nics)
    assert found["IPAddressDeny"] == [(2, bytes(4), 0), (10, bytes(16), 0)]


def test_the_filter_is_a_list_of_calls_that_holds_none_that_leads_out() -> None:
    assert settings()["SystemCallFilter"] == (True, SYSTEM_CALLS)
    assert len(set(SYSTEM_CALLS)) == len(SYSTEM_CALLS)
    assert not {"ptrace", "mount", "bpf", "unshare", "setns", "connect", "listen", "accept", "fork"} & set(SYSTEM_CALLS)
