"""The words of `solo5ctl`: one parser for each verb, filled by the verb's own module when it is chosen."""

import argparse
import os
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from solo5_systemd import __version__
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import task_name

if TYPE_CHECKING:
    from solo5_systemd.cli.session import Session

VERBS = {
    "run": "start a unikernel",
    "ps": "list tasks",
    "inspect": "show everything about tasks",
    "logs": "show a task's console",
    "stop": "ask tasks to end, then make them",
    "kill": "send a signal to tasks",
    "rm": "forget ended tasks",
    "wait": "wait until tasks have ended",
    "stats": "show what tasks use",
    "metrics": "print metrics, for Prometheus and its like",
    "freeze": "hold tasks still",
    "thaw": "let frozen tasks go on",
    "image": "show what an image needs, and whether it can run here",
    "network": "show networks",
    "doctor": "check this machine",
    "gc": "remove what belongs to nobody",
}


class Verb(Protocol):
    """What each verb's module offers."""

    configure: Callable[["Parser"], None]
    """Add the verb's options."""

    execute: Callable[[argparse.Namespace, "Session"], int]
    """Do it; the exit status."""


class Help(argparse.RawDescriptionHelpFormatter):
    """argparse's own, which without a width imports shutil, and what that imports, for every option added."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{"width": _width(), **settings})


def _width() -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) - 2
    except ValueError:
        return (os.get_terminal_size().columns if os.isatty(1) else 80) - 2


class Parser(argparse.ArgumentParser):
    """argparse with errors of ours, and without guessing at shortened options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Help, **settings})

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say.

        Raises:
            InvalidRequestError: always.
        """
        where = self.prog.partition(" ")[2]
        sentence = f"{message.removeprefix('argument ')}."
        raise InvalidRequestError(f"{where}: {sentence}" if where else sentence, f"See: {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; a word that nobody knows is an error of the parser that met it."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def add_task_names(self) -> None:
        self.add_argument("names", metavar="NAME", nargs="+", type=task_name, help="a task's name")

    def add_output_options(self, *, json: bool) -> None:
        """The options of every verb that prints."""
        if json:
            self.add_argument("--json", action="store_true", help="print JSON, for programs")
        self.add_argument(
            "--no-color", action="store_true", default=argparse.SUPPRESS, help="no colour, on a terminal either"
        )


class VerbParser(Parser):
    """The parser of one verb, empty until it is used."""

    def __init__(self, *, verb: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._verb = verb
        self._filled = False

    def fill(self) -> None:
        """Import the verb's module and let it add its options."""
        if not self._filled:
            self._filled = True
            module = cast("Verb", import_module(f"solo5_systemd.cli.verbs.{self._verb}"))
            module.configure(self)
            self.set_defaults(execute=module.execute)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.fill()
        return super().parse_known_args(args, namespace)


def build(chosen: Collection[str] = VERBS) -> tuple[Parser, dict[str, VerbParser]]:
    """The parser with the chosen verbs, and the verbs' own by name."""
    top = Parser(
        prog="solo5ctl",
        description="Run Solo5 unikernels as ordinary systemd units.",
        epilog="Each verb explains itself: solo5ctl VERB --help. The manual is solo5ctl(1).",
    )
    top.add_argument("--version", action="version", version=f"solo5ctl {__version__}")
    top.add_argument("--no-color", action="store_true", help="no colour, on a terminal either")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True, dest="verb", parser_class=VerbParser)
    parsers = {
        verb: verbs.add_parser(verb, verb=verb, help=summary, description=f"{summary.capitalize()}.")
        for verb, summary in VERBS.items()
        if verb in chosen
    }
    return top, parsers


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The chosen verb's arguments, with its `execute`.

    Raises:
        InvalidRequestError: a word that no parser knows, or a malformed value.
        SystemExit: after --help and --version.
    """
    # Fifteen parsers, of which fourteen are for nothing, would be felt in `ps`.
    top, _ = build(words[:1] if words and words[0] in VERBS else VERBS)
    return top.parse_args(words)
