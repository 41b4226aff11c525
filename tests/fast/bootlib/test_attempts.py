"""A command on a virtual machine whose kernel is killed by its emulation is run once more, and no other."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.bootlib import cache, main, vm
from tests.support.bootlib.errors import FAILED, TIMED_OUT, MachineGoneError, MachineTimeoutError

PANIC = "[  261.4] Kernel panic - not syncing: Fatal exception in interrupt\n"
GONE = MachineGoneError("the machine ended before the command did")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A virtual machine whose console and end are set by the test; `runs` counts the commands."""
    state = SimpleNamespace(console="", ends=[], runs=0, emulated=True)

    @contextmanager
    def booted(_: object, run: Path) -> Iterator[object]:
        (run / "console").write_text(state.console)
        yield SimpleNamespace(state={"state": "running"})

    def use(*_: object) -> int:
        state.runs += 1
        if state.ends:
            raise state.ends.pop(0)
        return 0

    kinds = {True: vm.EMULATION, False: vm.HARDWARE}
    monkeypatch.setattr(main, "_made", lambda _: (tmp_path, tmp_path / "upper", []))
    monkeypatch.setattr(main, "_own_files", list)
    monkeypatch.setattr(main, "_use", use)
    monkeypatch.setattr(cache, "in_use", lambda *_: nullcontext())
    monkeypatch.setattr(vm, "booted", booted)
    monkeypatch.setattr(vm, "accelerator", lambda: kinds[state.emulated])
    handler = signal.getsignal(signal.SIGTERM)
    yield state
    signal.signal(signal.SIGTERM, handler)  # which main sets


@pytest.mark.parametrize(
    ("console", "ends", "emulated", "status", "runs"),
    [
        ("", [], True, 0, 1),
        (PANIC, [GONE], True, 0, 2),
        (PANIC, [GONE, GONE], True, FAILED, 2),
        (PANIC, [GONE], False, FAILED, 1),
        ("", [GONE], True, FAILED, 1),
        (PANIC, [MachineTimeoutError("late")], True, TIMED_OUT, 1),
    ],
)
def test_a_panic_of_an_emulated_kernel_is_tried_once_more(
    machine: Any,
    capfd: pytest.CaptureFixture[str],
    console: str,
    ends: list[Exception],
    emulated: bool,
    status: int,
    runs: int,
) -> None:
    machine.console, machine.ends, machine.emulated = console, list(ends), emulated
    assert main.main(["--backend", "vm", "--", "true"]) == status
    assert machine.runs == runs
    assert ("its emulation killed the kernel: booting again" in capfd.readouterr().err) is (runs == 2)
