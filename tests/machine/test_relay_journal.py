"""Consoles through restarts of journald, rotation and vacuuming, and many of them at once."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.machine.conftest import Machine, eventually, ok, remove_namespace, unit_property
from tests.machine.consoles import UNLIMITED, Consoles, called, numbers, shell_task

from solo5_systemd.bus.relay_client import Relay
from solo5_systemd.journal.reader import JournalReader
from solo5_systemd.relay.line_queue import dropped_notice

COUNTING = "i=1; while [ $i -le %d ]; do echo line $i; i=$((i+1)); sleep %s; done"


def test_each_line_is_delivered_once_while_journald_restarts_rotates_and_vacuums(
    consoles: Consoles, tmp_path: Path
) -> None:
    """To a FIFO of the relay, and to `solo5ctl logs --follow`."""
    stdout, _ = consoles.forward("through")
    shell_task("through", COUNTING % (2000, 0.001), *UNLIMITED)
    output = tmp_path / "out"
    with output.open("wb") as file, subprocess.Popen(["solo5ctl", "logs", "-f", "through"], stdout=file) as follower:
        readers = (partial(getattr, stdout, "got"), output.read_bytes)
        for _ in range(2):
            more_come(*readers)
            ok("systemctl", "restart", "systemd-journald")
            more_come(*readers)
            ok("journalctl", "--rotate")
            is_read(ok("journalctl", "--lines=1", "--output=cat", "--unit=solo5-task-through.service"), *readers)
            ok("journalctl", "--vacuum-files=1")
        is_read("line 2000\n", *readers)
        assert follower.wait(60) == 0
    for read in readers:
        assert numbers(read()) == list(range(1, 2001))


OVERTAKEN = "overtaken"


@pytest.fixture
def files(machine: Machine) -> Iterator[None]:
    """A journal of three files, each with a line."""
    namespace = f"--namespace={OVERTAKEN}"
    script = "echo line 1; {0}; echo line 2; {0}; echo line 3; {1}".format(
        f"journalctl {namespace} --sync; journalctl {namespace} --rotate", f"journalctl {namespace} --sync"
    )
    ok("systemd-run", "--wait", "--quiet", f"--property=LogNamespace={OVERTAKEN}", "sh", "-c", script)
    yield
    remove_namespace(OVERTAKEN)


@pytest.mark.usefixtures("files")
def test_reader_skips_files_that_journald_removes() -> None:
    """The current file of the reader, and the next one."""
    with closing(JournalReader(["_TRANSPORT=stdout"], OVERTAKEN)) as forward:
        lines = iter(forward.next, None)
        assert next(lines).data == b"line 1\n"
        with closing(JournalReader(["_TRANSPORT=stdout"], OVERTAKEN)) as behind:
            after = iter(behind.next, None)
            behind.seek_after(next(after).position.cursor)
            assert next(after).data == b"line 2\n"
            ok("journalctl", f"--namespace={OVERTAKEN}", "--vacuum-files=1")
            assert [line.data for line in after] == [b"line 3\n"]
        assert [line.data for line in lines] == [b"line 3\n"]


def test_lines_removed_before_delivery_have_a_notice_with_their_number(consoles: Consoles) -> None:
    stdout, stderr = consoles.forward("removed", reads=False)
    shell_task("removed", f"exec seq -f 'line %g {'.' * 80}' 20000", *UNLIMITED)
    is_gone("removed")
    behind, _ = consoles.forward("behind")
    shell_task("behind", "echo seen")
    eventually(lambda: behind.got == b"seen\n", "the relay has skipped all those lines")
    ok("journalctl", "--rotate")
    ok("journalctl", "--vacuum-size=1")
    shell_task("removed", f"exec seq -f 'line %g {'.' * 80}' 20001 20100", *UNLIMITED)
    stdout.start()
    stderr.start()
    eventually(lambda: b"line 20100 " in stdout.got and stderr.got, "what is left comes, and a notice")
    came = numbers(stdout.got)
    gone = 20100 - len(came)
    assert came == [*range(1, 20001 - gone), *range(20001, 20101)]
    assert stderr.got.decode() == (
        f"solo5-relay: journald removed {gone} lines of this task's stdout before delivery\n"
    )


def test_dropped_lines_have_a_notice_in_their_place_and_a_signal(consoles: Consoles) -> None:
    stdout, stderr = consoles.forward("gap")
    script = "seq -f 'line %g' 3000; sleep 1.5; echo after; sleep 0.5"
    dropped: list[tuple[str, int]] = []

    def is_complete() -> bool:
        return b"after\n" in stdout.got and len(numbers(stdout.got)) + sum(lines for _, lines in dropped) == 3000

    async def listen(relay: Relay) -> None:
        async for each in relay.gaps():
            dropped.append(each)  # noqa: PERF401 - it never ends

    async def told(relay: Relay) -> None:
        listening = asyncio.ensure_future(listen(relay))
        await asyncio.to_thread(
            eventually, lambda: relay._service.connection._listeners, "the bus has its subscription"
        )
        await asyncio.to_thread(shell_task, "gap", script, "LogRateLimitIntervalSec=1s", "LogRateLimitBurst=100")
        await asyncio.to_thread(eventually, is_complete, "each line was delivered or is counted as dropped")
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    called(told)
    assert dropped
    assert {task for task, _ in dropped} == {"gap"}
    assert numbers(stdout.got) == sorted(set(numbers(stdout.got)))
    notices = b"".join(dropped_notice(lines) for _, lines in dropped)
    eventually(lambda: stderr.got == notices, "stderr has exactly these notices")


def is_gone(name: str) -> None:
    """Wait until a task has ended and the journal has all its lines."""
    unit = f"solo5-task-{name}.service"
    eventually(lambda: unit_property(unit, "LoadState") == "not-found", f"{unit} is over, and its name free")
    ok("journalctl", "--sync")


def more_come(*readers: Callable[[], bytes]) -> None:
    before = [len(numbers(read())) for read in readers]
    eventually(
        lambda: all(len(numbers(read())) >= had + 50 for read, had in zip(readers, before, strict=True)),
        "more lines come",
    )


def is_read(line: str, *readers: Callable[[], bytes]) -> None:
    eventually(lambda: all(line.encode() in read() for read in readers), f"{line!r} has come")
