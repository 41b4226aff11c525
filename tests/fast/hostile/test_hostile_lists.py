"""Lists of a job with very many entries: a workload, or a refusal in one sentence, in linear time and little memory."""

import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fast.nomad.values import packed, port, task_config
from tests.hostile.claim import value_or_refusal

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName
from solo5_systemd.nomad.option_values import CONFIG_MAX_BYTES, LENGTH_MAX
from solo5_systemd.nomad.plugin_config import PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.task_options import task_options
from solo5_systemd.nomad.workload import workload_of
from solo5_systemd.settings.resolver import hosts
from solo5_systemd.task.placeholders import COMMAND_LINE_MAX, expand, placeholders

CPU_S = 3
"""Seconds of processor time for one task: some times that of the longest, and less than any square takes."""

LISTS: dict[str, dict[str, Any]] = {
    "files": {"block": {"data": {"files": [f"a/{number}" for number in range(LENGTH_MAX)]}}},
    "more files": {"block": {"data": {"files": [f"a/{number}" for number in range(100_000)]}}},
    "routes": {"nic": {"service": {"routes": [f"10.{n >> 8}.{n & 255}.0/24" for n in range(LENGTH_MAX)]}}},
    "more routes": {"nic": {"service": {"routes": [f"10.{n >> 8}.{n & 255}.0/24" for n in range(60_000)]}}},
    "ranges of ports": {"ports": [f"{first}-{first + 255}" for first in range(1, 65_000, 255)]},
    "one range of ports": {"ports": ["1-256"] * 256},
    "args": {"args": ["{na" * 40] * LENGTH_MAX},
    "more args": {"args": [""] * 1_000_000},
    "one arg": {"args": ["{na" * 300_000]},
    "labels": {"labels": {f"L{number}": "" for number in range(80_000)}},
}


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """End the block with SIGPROF after so much processor time, which fails the test at once."""

    def give_up(_number: int, _frame: object) -> None:
        pytest.fail(f"it took more than {seconds} s of processor time")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def of_dispatcher(**config: Any) -> wire.TaskConfig:
    """A task in a group with a network of its own, with 4000 values of `meta`."""
    task = task_config(**config)
    task.network_isolation_spec.mode = wire.NetworkIsolationSpec.GROUP
    task.network_isolation_spec.path = "/run/netns/group"
    task.env.update({f"NOMAD_META_K{number}": f"{{zz{number}" for number in range(4000)})
    return task


def workload(task: wire.TaskConfig) -> object:
    return workload_of(task, task_options(task.msgpack_driver_config), PluginConfig(), 8)


@pytest.mark.parametrize("config", LISTS.values(), ids=LISTS)
def test_a_long_list_of_a_job_takes_no_longer_than_its_length(config: dict[str, Any]) -> None:
    assert len(packed(**config)) < CONFIG_MAX_BYTES  # or it would be refused before
    with limited(CPU_S):
        assert value_or_refusal(workload, of_dispatcher(**config), error=InvalidRequestError) is None


LISTED = [{}, {"ports": [f"p{number}" for number in range(9744, 10_000)]}]


@pytest.mark.parametrize("listed", LISTED, ids=["all", "256"])
def test_a_group_with_very_many_ports_takes_no_longer_than_their_number(listed: dict[str, Any]) -> None:
    task = task_config(*(port(f"p{number}", 10_000 + number) for number in range(10_000)), **listed)
    with limited(CPU_S):
        assert value_or_refusal(workload, task, error=InvalidRequestError)


def test_a_placeholder_with_a_long_value_is_not_written_out_often() -> None:
    """64 hosts have 12 KiB, and their placeholder seven bytes."""
    long = ".".join(letter * 60 for letter in "abc")
    named = hosts([f"h{number:02}{long}:192.0.2.7" for number in range(64)])
    values = placeholders(TaskName("web"), 64, (), hosts=named)
    assert len(values["hosts"]) > COMMAND_LINE_MAX
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match="bytes long: expected at most 8191"):
            expand(["{hosts}" * 4000], values)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
