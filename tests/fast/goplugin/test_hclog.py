import json
import re
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from solo5_systemd.goplugin import hclog


def read(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    entry = json.loads(line)
    assert isinstance(entry, dict)
    return entry


def line(message: str = "started", **fields: object) -> bytes:
    return hclog.log_line(level="info", message=message, time=0, fields=fields)


def test_a_line_is_level_message_time_and_fields() -> None:
    whole_second = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    written = hclog.log_line(level="warn", message="slow", time=whole_second, fields={"task": "web"})
    assert read(written) == {
        "@level": "warn",
        "@message": "slow",
        "@timestamp": "2026-01-02T03:04:05.000000Z",
        "task": "web",
    }


def test_numbers_travel_as_text_lest_the_host_print_them_as_floats() -> None:
    entry = read(line(count=1_000_000, share=float("nan"), full=True, none=None))
    assert (entry["count"], entry["share"], entry["full"], entry["none"]) == ("1000000", "nan", "true", "None")


def test_no_field_can_pose_as_one_of_the_hosts_own() -> None:
    written = hclog.log_line(level="info", message="m", time=0, fields={"@message": 7, "@": 8, "@@level": 9})
    entry = read(written)
    assert (entry["@message"], entry["@level"]) == ("m", "info")
    assert (entry["message"], entry["at"], entry["level"]) == ("7", "8", "9")


def test_a_long_value_keeps_how_it_begins_and_ends() -> None:
    written = line(traceback="Traceback\n" + "x\n" * 100_000 + "ValueError")
    assert len(written) < 64 * 1024
    assert re.fullmatch(r"Traceback\n.* … .*ValueError", read(written)["traceback"], re.DOTALL)


@given(st.text(), st.dictionaries(st.text(), st.one_of(st.text(), st.binary(), st.integers(), st.floats())))
def test_whatever_is_logged_the_host_can_read_it(message: str, fields: dict[str, object]) -> None:
    entry = read(hclog.log_line(level="info", message=message + "\udcff", time=0, fields=fields))
    assert all(isinstance(entry[key], str) for key in ("@level", "@message", "@timestamp"))
    assert "\n" not in entry["@message"]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 100_000), max_size=3))
def test_no_line_is_longer_than_the_host_reads(lengths: list[int]) -> None:
    fields = {f"field{number}": "\x01" * length for number, length in enumerate(lengths)}
    assert len(line(**fields)) < 64 * 1024
