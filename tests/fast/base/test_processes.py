"""Parts of a list in several processes."""

import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.base.processes import in_processes


def _of(numbers: Sequence[int]) -> tuple[Sequence[int], int]:
    return numbers, os.getpid()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_the_parts_have_all_items_in_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    found = in_processes(_of, range(count), 1)
    assert [number for part, _ in found for number in part] == list(range(count))
    assert len({process for _, process in found}) == len(found) == max(1, min(3, count))
    assert found[0][1] == os.getpid()


def test_few_items_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    assert in_processes(_of, range(9), 10) == [(range(9), os.getpid())]


def test_a_result_is_larger_than_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    assert in_processes(lambda part: "x" * 10**6, range(2), 1) == ["x" * 10**6] * 2


@pytest.mark.parametrize("failing", [0, 1])
def test_a_part_that_fails_is_an_error_and_no_child_remains(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))

    def work(part: Sequence[int]) -> None:
        if failing in part:
            raise ValueError("this one")

    with pytest.raises((ValueError, ChildProcessError), match="this one"):
        in_processes(work, range(2), 1)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_part_of_a_child_that_is_killed_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    own = os.getpid()

    def work(part: Sequence[int]) -> tuple[Sequence[int], int]:
        if 1 in part and os.getpid() != own:
            os.kill(os.getpid(), signal.SIGKILL)
        return _of(part)

    (first, _), second, (third, other) = in_processes(work, range(3), 1)
    assert (first, second, third) == (range(1), (range(1, 2), own), range(2, 3))
    assert other != own


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOMEM])
def test_without_a_further_process_all_is_done_here(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    opened = [*Path("/proc/self/fd").iterdir()]
    monkeypatch.setattr(os, "fork", failing(error))
    assert in_processes(_of, range(3), 1) == [(range(each, each + 1), os.getpid()) for each in range(3)]
    assert [*Path("/proc/self/fd").iterdir()] == opened
