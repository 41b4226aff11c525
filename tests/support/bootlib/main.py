"""The order of events: make what is missing, boot, use, take away."""

import argparse
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from . import agent, arguments, cache, container, layer, machines, package, trees, vm
from .abandoned import run_directory
from .checkout import CHECKOUT
from .control import Control
from .errors import MachineError, MachineGoneError, status_of
from .machine import Machine, Wanted
from .report import not_running, progress, show_console
from .session import Copy, Meanwhile, listening
from .terminal import shell

_T = TypeVar("_T")
AGAIN = 75  # EX_TEMPFAIL of sysexits.h: COMMAND wants the machine to boot again


def main(words: list[str]) -> int:
    wanted = arguments.parse(words)
    return status_of(lambda: _boot(wanted))


def _boot(asked: argparse.Namespace) -> int:
    tree, upper, extras = _made(asked)
    if asked.prepare:
        return 0
    copies = [*_own_files(), *extras, *asked.copy]
    wanted = Wanted(
        tree=tree, layer=upper, release=asked.release, memory=asked.memory, cpus=asked.cpus, reboots=asked.reboot
    )
    with cache.in_use(tree, upper.parent):
        try:
            return _run(wanted, asked, copies)
        except _KilledError as error:  # now and then: see `vm.is_killed`
            progress(f"{error}; its emulation killed the kernel: booting again, for the whole command …")
        return _run(wanted, asked, copies)


class _KilledError(MachineError):
    """The machine's kernel was killed by its emulation."""


def _run(wanted: Wanted, asked: argparse.Namespace, copies: list[Copy]) -> int:
    with run_directory() as run:
        try:
            if asked.machines:
                return _several(wanted, run, asked, copies)
            with (vm if asked.backend == "vm" else container).booted(wanted, run) as machine:
                not_running("the machine", machine.state)
                return _use(machine, asked, copies)
        except MachineError as error:
            for console in (run / "console", *run.glob("*/console")):
                show_console(console)
            if asked.backend == "vm" and isinstance(error, MachineGoneError) and vm.is_killed(run / "console"):
                raise _KilledError(str(error)) from error
            raise


def _made(asked: argparse.Namespace) -> tuple[Path, Path, list[Copy]]:
    """Return the tree, its upper directory and the extras: made side by side, as far as they are not cached."""
    recipe = trees.BESIDE if "beside" in asked.extras else trees.equipped(asked.packages)
    tree = _begun(lambda: trees.tree(recipe, asked.release))
    contents = _begun(lambda: _contents(asked))
    extras = _begun(lambda: agent.copies() if "nomad" in asked.extras else [])
    return tree.result(), layer.layer(tree.result(), contents.result()), extras.result()


def _contents(asked: argparse.Namespace) -> layer.Contents:
    tenders = _begun(lambda: layer.made(CHECKOUT / "tests/support/standin"))
    guests = _begun(lambda: layer.made(CHECKOUT / "tests/support/guests"))
    senders = _begun(lambda: layer.made(CHECKOUT / "tests/support/senders"))
    packages = () if asked.bare else tuple(package.built(asked.release).glob("*.deb"))
    return layer.Contents(packages=packages, tenders=tenders.result(), guests=guests.result(), senders=senders.result())


def _begun(work: Callable[[], _T]) -> "Future[_T]":
    """Begin *work*; its result, or its failure, is the future's.

    The thread does not keep this process from ending, and programs that it runs end with it (`enclosure.UNDER_US`).
    """
    future: Future[_T] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again where the result is fetched)
            future.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return future


def _use(machine: Machine, asked: argparse.Namespace, copies: list[Copy], meanwhile: Meanwhile | None = None) -> int:
    session = machine.session
    session.within(asked.timeout, "the command")
    session.put(copies)
    status = session.run(asked.command, asked.backend, meanwhile=meanwhile) if asked.command else 0
    while asked.reboot and status == AGAIN:
        not_running("the machine", session.reboot())
        status = session.run(asked.command, asked.backend)
    for copy in asked.copy_out:
        session.fetch(copy)
    if asked.shell:
        session.within(None, "the shell")
        return shell(session, asked.backend)
    return status


def _several(wanted: Wanted, run: Path, asked: argparse.Namespace, copies: list[Copy]) -> int:
    """Boot the machines of --machines, and use the first one, which has the others at its command."""
    with listening(run / "control") as server, machines.booted(wanted, run, asked.machines, run / "control") as several:
        several.put(copies)
        return _use(several.first, asked, [], Control(server, several).serve_until)


def _own_files() -> list[Copy]:
    """The tests, documentation and examples that they read, and pytest's settings in a folder above, where it looks."""
    return [
        Copy(host=CHECKOUT / "docs", guest=Path("/srv/docs")),
        Copy(host=CHECKOUT / "examples", guest=Path("/srv/examples")),
        Copy(host=CHECKOUT / "tests", guest=Path("/srv/tests")),
        Copy(host=CHECKOUT / "pyproject.toml", guest=Path("/srv/pyproject.toml")),
    ]
