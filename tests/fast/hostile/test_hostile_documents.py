"""Documents that another program wrote, or damaged: a value, or a refusal in one sentence."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.hostile.claim import value_or_refusal
from tests.hostile.values import DOCUMENTS, changed

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError, SettingsError, Solo5Error
from solo5_systemd.image.manifest import StoredImage
from solo5_systemd.network import lease_files
from solo5_systemd.network.lease_files import LeaseStore, read_lease_records, read_networks
from solo5_systemd.network.model import LeaseRecord
from solo5_systemd.network.remembered_addresses import LastRequest
from solo5_systemd.nomad.handle import decode
from solo5_systemd.nomad.plugin_config import plugin_config
from solo5_systemd.nomad.task_options import task_options
from solo5_systemd.relay.state_files import ConsoleState, StateFiles
from solo5_systemd.settings.network_policy import Network
from solo5_systemd.settings.records import document, record
from solo5_systemd.settings.solo5_toml import parse_settings

LEASE_RECORD: dict[str, Any] = {
    "state": "attached", "expires": 60,
    "reservation": {
        "task": "web",
        "leases": [{
            "nic": "service", "network": "default", "bridge": "solo5-default", "tap": "s5-abc", "ipv4": "10.89.0.2/24",
            "gateway4": "10.89.0.1", "mac": "02:00:00:00:00:01", "mtu": 1500, "limits": {"rate": ["sent=5K"]},
        }],
        "ports": [{"nic": "service", "host_ip": "10.0.0.1", "host_port": 8080, "port": 80, "protocol": "tcp"}],
    },
}  # fmt: skip
NETWORK = {
    "name": "default", "bridge": "solo5-default", "ipv4": "10.89.0.0/24", "gateway4": "10.89.0.1",
    "mtu": 1500, "masquerade": False,
    "policy": {
        "reach": ["back"], "isolated": True, "host": ["53/udp"], "connections": 64,
        "fragments": True,
        "dhcp": True,
    },
}  # fmt: skip
LAST = {"nics": [{"nic": "service", "ipv4": "10.89.0.2", "mac": "02:00:00:00:00:01"}], "idle_s": 5, "declaration": "0"}
PLACE = {"cursor": "s=1;i=2", "written": 7}
RECORD = {
    "task": "web", "unit": "solo5-task-web.service", "since": 5, "began": 4, "number": 1, "ended": False,
    "namespace": "guests",
    "progress": {"stdout": {**PLACE, "staged": PLACE}, "stderr": PLACE},
}  # fmt: skip
MEMO = {
    "size": 4096,
    "sha256": "0123456789abcdef" * 4,
    "manifest": {
        "target": "hvt", "nics": ["service"], "disks": [],
        "min_memory": 1 << 21,
    },
}  # fmt: skip
STATE = {
    "version": 1, "boot": "b", "logging": "nomad",
    "run": {"task": "web", "unit": "solo5-task-web.service", "active": "active", "invocation": "0" * 32, "started": 1},
    "ready": {"protocol": "tcp", "address": "10.0.0.2", "port": 80, "interval": "1s", "on_loss": "restart"},
}  # fmt: skip
OPTIONS = {
    "unikernel": "local/web.hvt", "args": ["--port=80"], "ports": ["http", "dns/udp"], "tender": "hvt",
    "unit": "service", "logging": "nomad", "quiet": True, "cpu_hard_limit": False, "labels": {"ROLE": "web"},
    "nic": {"service": {"network": "lab", "ip": "10.1.2.3", "mac": "02:00:5e:10:00:01", "ports": ["http"]}},
    "block": {"storage": {"source": "local/disk", "sector_size": 512}},
    "properties": {"TasksMax": "8", "IOReadBandwidthMax": "/dev/vda 1M"},
    "ready": {"tcp": "80", "deadline": "5s", "interval": "1s", "on_loss": "event"},
}  # fmt: skip
CONFIG = {
    "enabled": True, "image_paths": ["/srv"], "block_paths": ["/srv"], "tender_paths": ["/opt"], "networks": ["lab"],
    "network": {"lab": {"ipv4": "10.1.0.0/16", "bridge": "br0", "mtu": 9000, "dns": ["9.9.9.9"], "search": ["lan"]}},
    "stats_interval": "2s", "disable_log_collection": False, "allowed_properties": ["TasksMax"],
    "defaults": {"tender": "spt", "unit": "service", "quiet": True, "properties": {"TasksMax": "8"}},
    "ceilings": {"memory_mb": 64, "nics": 1, "blocks": 1, "ports": 3},
    "gc": {"interval": "1h", "image_age": "24h", "dangling_tasks": {"period": "1m", "creation_grace": "5m"}},
}  # fmt: skip
POLICY = {"host": ["53/udp", "8080/tcp"], "reach": ["lab"], "metadata": True, "routed": False, "isolated": True,
          "dns": ["9.9.9.9"], "search": ["example.org"]}  # fmt: skip
SETTINGS = {
    "tender_paths": ["/usr/bin"], "reserved_ports": [22, "4646-4648"],
    "network": {"lab": {"ipv4": "10.1.0.0/16", "mtu": 1500}, "back": {**POLICY, "connections": 100}},
}  # fmt: skip


def as_json(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def as_msgpack(value: object) -> bytes:
    packed = msgpack.packb(value, unicode_errors="surrogatepass")
    assert isinstance(packed, bytes)
    return packed


def reads(kind: type[object]) -> Callable[[object], object]:
    return lambda value: record(kind, Fields(value))


Reader = Callable[..., object]
READERS: dict[str, tuple[Reader, type[Solo5Error], Callable[[object], object], object]] = {
    "memo": (lambda content: StoredImage.decode(content, ""), InvalidRequestError, as_json, MEMO),
    "handle": (decode, InvalidRequestError, as_json, STATE),
    "holding": (reads(LeaseRecord), InvalidRequestError, lambda value: value, LEASE_RECORD),
    "network": (reads(Network), InvalidRequestError, lambda value: value, NETWORK),
    "last request": (reads(LastRequest), InvalidRequestError, lambda value: value, LAST),
    "record": (reads(ConsoleState), InvalidRequestError, lambda value: value, RECORD),
    "options": (task_options, InvalidRequestError, as_msgpack, OPTIONS),
    "config": (plugin_config, SettingsError, as_msgpack, CONFIG),
    "settings": (parse_settings, SettingsError, lambda value: value, SETTINGS),
}
"""What reads a document, what it refuses with, how the document is written, and a sound one."""
BYTES = [name for name, (_, _, write, _) in READERS.items() if write in (as_json, as_msgpack)]


@pytest.mark.parametrize("name", READERS)
def test_the_sound_document_is_read(name: str) -> None:
    read, _, write, sound = READERS[name]
    assert read(write(sound)) is not None


@pytest.mark.parametrize("name", READERS)
@given(st.data())
def test_a_changed_document_is_a_value_or_one_sentence(name: str, data: st.DataObject) -> None:
    read, error, write, sound = READERS[name]
    value_or_refusal(read, write(data.draw(changed(sound))), error=error)


@pytest.mark.parametrize("name", READERS)
@given(DOCUMENTS)
def test_a_document_of_any_shape_is_a_value_or_one_sentence(name: str, value: object) -> None:
    read, error, write, _ = READERS[name]
    value_or_refusal(read, write(value), error=error)


@pytest.mark.parametrize("name", BYTES)
@given(st.data())
def test_a_document_cut_off_or_with_other_bytes_is_a_value_or_one_sentence(name: str, data: st.DataObject) -> None:
    read, error, write, sound = READERS[name]
    whole = write(sound)
    assert isinstance(whole, bytes)
    content = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + 1] = data.draw(st.binary(max_size=4))
    value_or_refusal(read, bytes(content), error=error)


DEEP = {"json": b"[" * 100_000, "objects": b'{"a":' * 100_000, "msgpack": b"\x91" * 100_000, "number": b"1" * 5000}


@pytest.mark.parametrize("content", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("name", BYTES)
def test_a_document_too_deep_to_read_is_refused_in_a_sentence(name: str, content: bytes) -> None:
    read, error, _, _ = READERS[name]
    assert value_or_refusal(read, content, error=error) is None


# --- files -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("state")
    for name in ("tasks", "networks", "sysctls"):
        (directory / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_files, "STATE", directory)
        yield directory


CONTENTS = (
    st.sampled_from([*DEEP.values(), b"", b"null", b"\xff", b"\xef\xbb\xbf{}", b"\xed\xa0\x80"])
    | st.binary(max_size=50)
    | changed(LEASE_RECORD).map(as_json)
    | changed(NETWORK).map(as_json)
)  # fmt: skip


@given(CONTENTS)
@example(as_json(LEASE_RECORD))
def test_a_damaged_lease_file_stops_no_reader_and_is_removed_by_the_writer(directory: Path, content: bytes) -> None:
    for kind in ("tasks", "networks", "sysctls"):
        for old in (directory / kind).iterdir():
            old.unlink()
        (directory / kind / "web.json").write_bytes(content)
    seen = len(read_lease_records()), len(read_networks())
    store = LeaseStore()
    assert (len(list(store.lease_records())), len(store.networks())) == seen
    store.sysctls()
    assert len([*directory.glob("*/*.json")]) >= sum(seen)


@given(CONTENTS | changed(RECORD).map(as_json))
def test_a_damaged_record_stops_no_relay(directory: Path, content: bytes) -> None:
    path = directory / "web.json"
    path.write_bytes(content)
    records = list(StateFiles(directory).load())
    assert path.exists() == bool(records)


# --- round trips -------------------------------------------------------------------------------------------------


def test_what_was_read_is_written_as_it_was() -> None:
    assert document(reads(LeaseRecord)(LEASE_RECORD)) == LEASE_RECORD
    assert document(reads(Network)(NETWORK)) == NETWORK
    assert document(reads(ConsoleState)(RECORD), complete=True) == RECORD
    assert json.loads(StoredImage.decode(as_json(MEMO), "").encode()) == MEMO


@given(st.tuples(changed(LEASE_RECORD), changed(NETWORK), changed(RECORD)))
def test_what_can_be_read_can_be_written_and_read_again(contents: Sequence[object]) -> None:
    for kind, content in zip((LeaseRecord, Network, ConsoleState), contents, strict=True):
        found = value_or_refusal(reads(kind), content)
        assert found is None or reads(kind)(json.loads(json.dumps(document(found)))) == found
