"""The command line of ``boot`` and the order of events."""

import argparse
import signal
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

from . import cache, container, layer, trees, vm
from .errors import MachineError, MachineTimeout
from .machine import Machine, Wanted
from .report import progress
from .session import Copy

CHECKOUT = Path(__file__).resolve().parents[3]
FAILED, TIMED_OUT = 125, 124  # as env(1) and timeout(1) answer; everything else is COMMAND's own
_CONSOLE_LINES = 40


def main(words: list[str]) -> int:
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return _boot(_arguments(words))
    except MachineTimeout as error:
        progress(str(error))
        return TIMED_OUT
    except MachineError as error:
        progress(str(error))
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _boot(arguments: argparse.Namespace) -> int:
    tree = trees.tree(trees.MACHINE, arguments.release)
    upper = layer.layer(tree, _contents(arguments))
    wanted = Wanted(
        tree=tree, layer=upper, release=arguments.release, memory=arguments.memory, cpus=arguments.cpus
    )
    with cache.in_use(tree, upper.parent), tempfile.TemporaryDirectory(prefix="test-machine-") as run:
        console = Path(run) / "console"
        try:
            with _backend(arguments.backend, wanted, Path(run)) as machine:
                return _use(machine, arguments)
        except MachineError:
            _show_console(console)
            raise


def _backend(name: str, wanted: Wanted, run: Path) -> AbstractContextManager[Machine]:
    return {"vm": vm, "container": container}[name].booted(wanted, run)


def _contents(arguments: argparse.Namespace) -> layer.Contents:
    if arguments.bare:
        return layer.Contents()
    return layer.Contents(
        tenders=layer.made(CHECKOUT / "tests/standin"), guests=layer.made(CHECKOUT / "tests/guests")
    )


def _use(machine: Machine, arguments: argparse.Namespace) -> int:
    if machine.state["state"] != "running":
        progress(f"the machine is {machine.state['state']}; failed units: {' '.join(machine.state['failed']) or 'none'}")
    session = machine.session
    session.within(arguments.timeout)
    session.put([*_own_files(), *arguments.copy])
    status = session.run(arguments.command, arguments.backend) if arguments.command else 0
    for copy in arguments.copy_out:
        session.fetch(copy)
    return status


def _own_files() -> list[Copy]:
    """The tests, and pytest's settings where pytest looks for them: in a folder above."""
    return [
        Copy(host=CHECKOUT / "tests", guest=Path("/srv/tests")),
        Copy(host=CHECKOUT / "pyproject.toml", guest=Path("/srv/pyproject.toml")),
    ]


def _show_console(console: Path) -> None:
    if console.exists():
        lines = console.read_text(errors="replace").splitlines()[-_CONSOLE_LINES:]
        progress("the last of its console:\n" + "\n".join(f"    {line}" for line in lines))


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="boot",
        usage="%(prog)s [OPTION]… -- COMMAND [ARGUMENT]…",
        description="Boot a throw-away Debian machine with this checkout's package installed, and run COMMAND in it as root.",
    )
    parser.add_argument("--backend", choices=("vm", "container"), default="vm")
    parser.add_argument("--release", default="trixie")
    parser.add_argument("--memory", type=int, default=2048)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--copy", type=_copy_in, action="append", default=[])
    parser.add_argument("--copy-out", type=_copy_out, action="append", default=[])
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("command", nargs="*")
    return parser.parse_args(words)


def _copy_in(text: str) -> Copy:
    host, colon, guest = text.rpartition(":")
    if not colon or not guest.startswith("/"):
        raise argparse.ArgumentTypeError(f"“{text}” is not HOST:GUEST with an absolute GUEST")
    return Copy(host=Path(host), guest=Path(guest))


def _copy_out(text: str) -> Copy:
    guest, _, host = text.partition(":")
    if not host or not guest.startswith("/"):
        raise argparse.ArgumentTypeError(f"“{text}” is not GUEST:HOST with an absolute GUEST")
    return Copy(host=Path(host), guest=Path(guest))
