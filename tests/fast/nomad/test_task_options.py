"""A job's `config`: each key right and wrong, and whatever else can come as msgpack."""

import sys
from typing import Any

import pytest
from tests.fast.nomad.values import packed

from solo5_systemd.base.errors import DependencyError, InvalidRequestError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.nomad.option_values import CONFIG_MAX_BYTES
from solo5_systemd.nomad.task_options import NicOptions, TaskOptions, task_options
from solo5_systemd.task.workload import Workload


def shared(image: str, **settings: Any) -> Workload:
    return Workload(name=TaskName(""), image=image, **settings)


def test_what_nomad_sends_for_keys_that_were_left_out_is_as_if_they_were_not_there() -> None:
    nothing = dict.fromkeys(
        ("args", "ports", "tender", "unit", "logging", "quiet", "cpu_hard_limit", "properties"), None
    )
    keys = ("network", "ip", "ip6", "mac", "ports", "egress", "rate", "routes")
    nics: dict[str, object] = {"service": dict.fromkeys(keys, None)}
    assert task_options(packed(unikernel="a", nic={}, block={}, **nothing)) == TaskOptions(shared=shared("a"))
    assert task_options(packed(unikernel="a", nic=nics)).nic == {DeviceName("service"): NicOptions()}


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"unikernel": None}, 'config.unikernel is \'\': expected the path of an image, such as unikernel = "local'),
        ({"arg": "a"}, "config.arg is not a known key: expected one of args,"),
        ({"args": ["a", 1]}, "config.args is ['a', 1]: expected a list of strings"),
        ({"nic": []}, "config.nic is []: expected a table of named values"),
        ({"nic": {"a-b": {}}}, "config.nic 'a-b': device name 'a-b' is not usable"),
        ({"egress": ["example.org"]}, "config.egress: egress 'example.org' is not a destination"),
        ({"egress": ["a=10.0.0.0/8"]}, "config.egress 'a=10.0.0.0/8' is for NIC a: expected it in the block of"),
        ({"idle": {"after": "1s"}}, "out of range: expected 5 seconds to 365 days"),
        ({"idle": {"after": "5min", "action": "stop"}}, "config.idle.action is 'stop': expected sleep, since"),
        ({"nic": {"a": {"rate": ["sent=0"]}}}, "config.nic.a.rate: rate 'sent=0' is out of range"),
        ({"nic": {"a": {"ip6": "10.0.0.1"}}}, "config.nic.a.ip6: address '10.0.0.1' is not an IPv6 address"),
        ({"nic": {"a": {"ports": [""]}}}, "config.nic.a.ports is ''"),
        ({"ports": ["http/sctp"]}, "config.ports is 'http/sctp': expected labels of the group's ports, alone or"),
        ({"nic": {f"a{number}": {} for number in range(64)}}, "config.nic is '64 blocks': expected 63 or fewer"),
        ({"block": {"a": {}}}, "config.block.a has none of source, disk, files and volume: expected"),
        ({"block": {"a": {"source": "d", "disk": "d"}}}, "config.block.a has source and disk: expected one"),
        ({"block": {"a": {"source": "d", "format": "tar"}}}, "config.block.a has format or strip without files"),
        ({"block": {"a": {"files": ["d"], "read_only": True}}}, "config.block.a has files, and ephemeral or read_only"),
        ({"block": {"a": {"files": ["d"], "format": "zip"}}}, "config.block.a.format is 'zip': expected one of"),
        ({"block": {"a": {"disk": "../d"}}}, "disk name '../d' is not usable"),
        ({"block": {"a": {"disk": "d", "create": True}}}, "config.block.a has only some of disk or volume, create"),
        ({"block": {"a": {"source": "d", "size": "1M", "create": True}}}, "config.block.a has only some of disk"),
        ({"block": {"a": {"disk": "d", "size": "1X", "create": True}}}, "'1X' is not a size: expected a positive"),
        ({"block": {"a": {"source": "d", "file": "f"}}}, "config.block.a.file is 'f': expected none without volume"),
        ({"block": {"a": {"volume": "v", "file": "../f"}}}, "config.block.a.file is '../f': expected the path of"),
        ({"block": {"a": {"volume": "v", "file": "/f"}}}, "config.block.a.file is '/f': expected the path of a file"),
        ({"block": {"a": {"volume": "v", "file": "a\0b"}}}, "config.block.a.file is 'a"),
        ({"block": {"a": {"source": "d", "sector_size": 511}}}, "config.block.a.sector_size is 511: expected a whole"),
        ({"block": {"a": {"source": "d", "sector_size": 2**64 - 1}}}, "config.block.a.sector_size is 184467"),
        ({"block": {"a": {"source": "d", "io": {"read_bps": "1"}}}}, "config.block.a.io.read_bps: read_bps '1' is"),
        ({"block": {"a": {"files": ["b"], "io": {"read_bps": "1M"}}}}, "config.block.a has files and io: expected fil"),
        ({"tender": "kvm"}, 'config.tender \'kvm\' is unknown: expected hvt or spt.'),
        ({"logging": "file"}, 'config.logging is \'file\': expected one of "nomad", "journald"'),
        ({"labels": {"_TEAM": "web"}}, "config.labels: "),
    ],
)  # fmt: skip
def test_a_wrong_value_is_reported_with_its_key_and_what_was_expected(keys: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        task_options(packed(**{"unikernel": "a", **keys}))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "data, words",
    [
        (b"\xc0", "config is None: expected a table"),
        (b"\x81\x01\xa1a", "config cannot be decoded from msgpack: int is not allowed for map key"),
        (b"\x81\xc4\x01a\xa1a", "config is {b'a': 'a'}: expected a table"),
        (b"\x81\xa9unikernel\xa2\xff\xfe", "config cannot be decoded from msgpack: 'utf-8' codec"),
        (b"\x81\xa9unikernel\xd4\x00\x00", "config.unikernel is ExtType"),
        (b"\xc7\x03\xff\x00\x00\x00", "config cannot be decoded from msgpack: invalid timestamp"),
        (b"\x80\x80", "config cannot be decoded from msgpack: unpack(b) received extra data."),
        (b"\xdf\xff\xff\xff\xff", "config cannot be decoded from msgpack: 4294967295 exceeds"),
        (b"\xc1", "config cannot be decoded from msgpack: FormatError."),
        (b"\x81\xa1a" * 1020 + b"\xc0", "config cannot be decoded from msgpack: maximum recursion"),
        (b"\x91" * 100_000, "config cannot be decoded from msgpack: StackError."),
        (
            b"\x00" * (CONFIG_MAX_BYTES + 1),
            f"config is {CONFIG_MAX_BYTES + 1} bytes long: expected at most {CONFIG_MAX_BYTES}.",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value[:12]),
)
def test_what_nomad_never_sends_is_refused_in_one_sentence(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        task_options(data)
    assert words in str(caught.value)


def test_a_missing_msgpack_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(DependencyError, match="msgpack"):
        task_options(packed(unikernel="a"))


def test_an_idle_time_is_that_of_the_task() -> None:
    assert task_options(packed(unikernel="web.hvt", idle={"after": "10min"})).shared.idle_s == 600
    assert task_options(packed(unikernel="web.hvt", idle={"after": "5", "action": "sleep"})).shared.idle_s == 5
    assert task_options(packed(unikernel="web.hvt")).shared.idle_s == 0
