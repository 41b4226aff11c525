"""The entry point: help, version, usage errors, internal errors."""

import asyncio
from argparse import Namespace

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.support.interpreter import python

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import Target
from solo5_systemd.cli import parser
from solo5_systemd.cli.context import CommandContext, finished
from solo5_systemd.cli.verbs import ps
from solo5_systemd.task.property_types import SIZE
from solo5_systemd.task.settings import SETTINGS
from solo5_systemd.task.workload import DEFAULT_MEMORY


@pytest.mark.parametrize("verb", parser.VERBS)
def test_every_verb_has_help(
    solo5ctl: Solo5ctl, verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "0")  # of a terminal whose size is unknown
    with pytest.raises(SystemExit) as left:
        solo5ctl(verb, "--help")
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: solo5ctl {verb} ")
    assert parser.VERBS[verb][1:] in text


@pytest.mark.parametrize(
    ("words", "err"),
    [
        ([], "solo5ctl: the following arguments are required: VERB.\nSee: solo5ctl --help\n"),
        (["ps", "--al"], "solo5ctl: ps: unrecognized arguments: --al.\nSee: solo5ctl ps --help\n"),
        (["ps", "web"], "solo5ctl: ps: unrecognized arguments: web.\nSee: solo5ctl ps --help\n"),
        (["stop"], "solo5ctl: stop: the following arguments are required: NAME.\nSee: solo5ctl stop --help\n"),
        (["begin", "web"], "solo5ctl: VERB: invalid choice: 'begin' (choose from "),
        (["start", "web"], "solo5ctl: start is no verb of solo5ctl.\nThe same is done by: systemctl start NAME, of a "),
        (["--json", "ps"], "solo5ctl: unrecognized arguments: --json.\nSee: solo5ctl --help\n"),
    ],
)
def test_a_usage_error_is_a_sentence_and_exit_status_125(solo5ctl: Solo5ctl, words: list[str], err: str) -> None:
    result = solo5ctl(*words)
    assert (result.status, result.out) == (125, "")
    assert result.err.startswith(err)


def fail(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def execute(_arguments: Namespace, _context: CommandContext) -> int:
        raise error

    monkeypatch.setattr(ps, "execute", execute)


def test_an_interrupt_has_its_exit_status_without_output(solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, KeyboardInterrupt())
    result = solo5ctl("ps")
    assert (result.status, result.out, result.err) == (130, "", "")


def test_an_internal_error_is_one_sentence_and_with_solo5_debug_a_traceback(
    solo5ctl: Solo5ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOLO5_DEBUG", raising=False)
    fail(monkeypatch, ZeroDivisionError("division by zero"))
    result = solo5ctl("ps")
    assert result.status == 125
    assert result.err.startswith("solo5ctl: internal error: ZeroDivisionError: division by zero\n")
    monkeypatch.setenv("SOLO5_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        solo5ctl("ps")


MAIN = "import sys; from solo5_systemd.cli.main import main; sys.exit(main())"


def test_the_process_ends_at_once_but_for_its_threads() -> None:
    ended = "import atexit, threading; atexit.register(lambda: print('interpreter ended', flush=True))\n"
    done = python(ended + MAIN, "no-such-verb", check=False)
    assert (done.returncode, done.stdout) == (125, "")
    assert "no-such-verb" in done.stderr
    copying = "threading.Thread(target=lambda: (threading.main_thread().join(), print('copied', flush=True))).start()\n"
    done = python(ended + copying + MAIN, "no-such-verb", check=False)
    assert (done.returncode, done.stdout) == (125, "copied\ninterpreter ended\n")


@pytest.mark.parametrize(
    ("stdout", "status", "err"),
    [
        ("os.dup2(writing, 1); os.close(writing); os.close(reading)", 141, ""),
        ("os.dup2(os.open('/dev/full', os.O_WRONLY), 1)", 125, "solo5ctl: output cannot be written: No space left on "),
        ("os.dup2(os.open('/dev/full', os.O_WRONLY), 2); os.dup2(2, 1)", 125, ""),
        ("[os.close(each) for each in range(3)]; sys.stdin = sys.stdout = sys.stderr = None", 0, ""),
    ],
)
def test_output_that_cannot_be_written_causes_no_traceback(stdout: str, status: int, err: str) -> None:
    code = (
        "import os, sys\n"
        "from solo5_systemd.cli.main import run\n"
        "from solo5_systemd.cli.context import CommandContext\n"
        "from solo5_systemd.cli.terminal import standard_screen\n"
        "from solo5_systemd.engine import queries\n"
        "from tests.support.fakes.engine import FakeRuntime\n"
        "from contextlib import nullcontext\n"
        "queries.queries = lambda: nullcontext(FakeRuntime())\n"
        "reading, writing = os.pipe()\n"
        f"{stdout}\n"
        "os._exit(run(['ps'], CommandContext(standard_screen())))\n"
    )
    done = python(code, check=False)
    assert (done.returncode, done.stderr.removesuffix("device.\n")) == (status, err)


def test_what_help_has_without_an_import_is_what_the_modules_define() -> None:
    assert SETTINGS["Memory"].described.endswith(f"(default: {SIZE.format(DEFAULT_MEMORY)})")
    assert SETTINGS["Tender"].form.split("|") == [*Target]


async def double(number: int) -> int:
    if number < 0:
        raise HostError("less than zero.")
    return 2 * number


async def sums() -> int:
    return await double(1) + await double(2)


def test_a_coroutine_that_waits_for_nothing_needs_no_event_loop() -> None:
    assert finished(sums()) == 6
    with pytest.raises(HostError, match="less than zero"):
        finished(double(-1))


def test_a_coroutine_that_waits_is_refused_and_closed() -> None:
    closed: list[bool] = []

    async def waiting() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="waits for an event loop"):
        finished(waiting())
    assert closed == [True]
