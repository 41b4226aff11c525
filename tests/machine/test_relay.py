"""A task's console in FIFOs: each line is delivered once, whatever happens to reader and relay."""

import time
from pathlib import Path

import pytest
from tests.machine.conftest import NOBODY, Files, Machine, Runner, eventually, kill_main, ok, over, sh, unit_property
from tests.machine.consoles import UNLIMITED, Consoles, numbers, relay_pid, shell_task
from tests.machine.fifos import Reader

from solo5_systemd.base.names import TaskName, task_service

UNLIMITED_OPTIONS = tuple(word for each in UNLIMITED for word in ("--property", each))

RELAY = "solo5-relay.service"
LIST = ("busctl", "call", "org.solo5.Relay1", "/org/solo5/Relay1", "org.solo5.Relay1", "List")


def written(unit: str, line: str) -> None:
    """Wait until the journal has a line of a unit."""
    eventually(lambda: line in ok("journalctl", "--output=cat", f"--unit={unit}").splitlines(), f"{line!r} is written")


def test_console_and_tender_messages_are_separate_and_unchanged(run: Runner, consoles: Consoles) -> None:
    stdout, stderr = consoles.forward("apart")
    run("sleeper.hvt", name="apart")
    eventually(lambda: stdout.got == b"sleeping\n", "the line comes while the guest runs")
    ok("solo5ctl", "stop", "--signal", "INT", "apart")  # its tender writes a line then
    consoles.drain("apart")
    eventually(lambda: stdout.ended and stderr.ended, "both FIFOs end")
    assert stdout.got == b"sleeping\n"
    assert stderr.got.decode() == sh("solo5ctl", "logs", "apart").stderr
    assert b"solo5-hvt" in stderr.got


def test_last_line_is_delivered_when_drain_returns(run: Runner, consoles: Consoles) -> None:
    for i in range(8):
        name = f"short-{i}"
        stdout, _ = consoles.forward(name, reads=False)
        run("hello.spt", name=name)
        over(name)
        consoles.drain(name)
        assert stdout.now() == b"arguments: ''\nSolo5: solo5_exit(0) called\n"
        eventually(stdout.is_over, "the FIFO ends")


def test_full_fifo_delays_no_other_task_and_loses_no_line(run: Runner, consoles: Consoles) -> None:
    stuck, _ = consoles.forward("stuck", reads=False)
    run("flood.spt", "lines=60000", "bytes=100", name="stuck", options=UNLIMITED_OPTIONS)
    other, _ = consoles.forward("other")
    run("hello.spt", name="other")
    eventually(lambda: b"solo5_exit(0)" in other.got, "another task's line comes")
    over("stuck")
    assert resident_mib() < 64
    stuck.start()
    consoles.drain("stuck")
    eventually(lambda: stuck.ended, "the FIFO ends")
    assert numbers(stuck.got) == list(range(1, 60001))


def test_a_hundred_consoles_at_once_are_complete_in_bounded_memory(consoles: Consoles) -> None:
    """A quarter of them has readers that are behind: 75 MB wait in the journal, and not in the relay."""
    readers = [consoles.forward(f"crowd-{i}", reads=i % 4 > 0)[0] for i in range(100)]
    for i, reader in enumerate(readers):
        lines = 20 if reader.reads else 300
        shell_task(f"crowd-{i}", f"exec seq -f 'line %g {'.' * 10000}' {lines}", *UNLIMITED)
    for reader in filter(lambda reader: reader.reads, readers):
        eventually(lambda reader=reader: numbers(reader.got) == list(range(1, 21)), "its lines come")  # type: ignore[misc]
    assert resident_mib() < 64
    for reader in [reader for reader in readers if not reader.reads]:
        reader.start()
        eventually(lambda reader=reader: numbers(reader.got) == list(range(1, 301)), "its lines come")  # type: ignore[misc]
    assert resident_mib() < 64


def resident_mib() -> int:
    status = Path(f"/proc/{relay_pid()}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) // 1024


def test_killed_relay_continues_after_the_last_byte(machine: Machine, run: Runner, consoles: Consoles) -> None:
    machine.expect("solo5-relay.service: (Main process exited|Failed with result)")
    machine.expect("Failed to start solo5-relay.service")  # if it was killed before READY=1
    flowing, _ = consoles.forward("flowing")
    stuck, _ = consoles.forward("stuck", reads=False)
    run("flood.spt", "lines=20000", "bytes=100", name="stuck", options=UNLIMITED_OPTIONS)
    over("stuck")
    shell_task("flowing", "i=1; while [ $i -le 40000 ]; do echo line $i; i=$((i+1)); done", *UNLIMITED)
    for i in range(6):
        time.sleep(0.1 * i)
        kill_main(RELAY)
    eventually(lambda: b"line 40000\n" in flowing.got, "lines go on")
    assert flowing.got == b"".join(b"line %d\n" % number for number in range(1, 40001))
    stuck.start()
    consoles.drain("stuck")
    assert numbers(stuck.got) == list(range(1, 20001))


def test_killed_relay_is_restarted_with_many_tasks_of_long_names(machine: Machine, consoles: Consoles) -> None:
    """systemd passes the names of all descriptors in one variable, whose length the kernel limits."""
    machine.expect("solo5-relay.service: (Main process exited|Failed with result)")
    names = [f"{number:04}-{'long' * 30}" for number in range(260)]
    readers = {name: consoles.forward(name, reads=False)[0] for name in names}
    kill_main(RELAY)
    shell_task(names[-1], "echo still there")
    eventually(lambda: readers[names[-1]].now() == b"still there\n", "a line comes")


def test_new_reader_continues_after_the_old_one(consoles: Consoles) -> None:
    before = Reader(consoles._directory / "back.stdout.fifo")
    errors = consoles.reader("back", "stderr")
    consoles.hand_over("back", before, errors)
    unit = task_service(TaskName("back"))
    shell_task("back", "i=1; while [ $i -le 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done")
    got = b""
    while len(numbers(got)) < 5:
        got += before.now()
    before.close()
    written(unit, "line 15")
    after = consoles.reader("back", "stdout")
    consoles.hand_over("back", after, errors)
    eventually(lambda: b"line 30\n" in after.got, "lines go on")
    assert numbers(got + after.got) == list(range(1, 31))


@pytest.fixture
def impatient(place: Files) -> float:
    """A relay that exits after a second, which is returned, in the place of ten."""
    code = "from solo5_systemd.relay import main as relay; relay.IDLE_TIMEOUT_S = 1.0; raise SystemExit(relay.main())"
    text = f"[Service]\nExecStart=\nExecStart=/usr/bin/python3 -I -c '{code}'\n"
    place("/run/systemd/system/solo5-relay.service.d/impatient.conf", text)
    ok("systemctl", "stop", "solo5-relay.service")
    ok("systemctl", "daemon-reload")
    return 1.0


def test_relay_runs_only_while_it_is_needed(impatient: float, consoles: Consoles) -> None:
    consoles.forward("needed")
    pid = relay_pid()
    time.sleep(2 * impatient)
    assert relay_pid() == pid > 0, "it is idle, and holds FIFOs"
    assert "needed" in ok(*LIST)
    consoles.drain("needed")
    eventually(lambda: relay_pid() == 0, "the relay leaves")
    assert unit_property("solo5-relay.service", "Result") == "success"
    consoles.drain("nobody")
    assert relay_pid() == 0


def test_only_root_may_call_the_relay(machine: Machine) -> None:
    refused = sh(*NOBODY, *LIST)
    assert refused.returncode != 0
    assert "denied" in refused.stderr.lower()
