"""Command line parser of `solo5ctl`; the module of a verb is imported when the verb is used."""

import argparse
import os
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from solo5_systemd import __version__
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import task_name

if TYPE_CHECKING:
    from solo5_systemd.cli.context import CommandContext

VERBS = {
    "run": "start a unikernel",
    "ps": "list tasks",
    "inspect": "show details of tasks",
    "update": "give a declared task a new image without a lost connection",
    "rollback": "return to the image before the last update",
    "export": "print the declaration of a task that runs",
    "logs": "show the console of a task",
    "stop": "stop tasks",
    "restart": "stop and start tasks",
    "kill": "send a signal to tasks",
    "rm": "remove ended tasks",
    "wait": "wait for tasks to end and print their exit statuses",
    "stats": "show resource usage of tasks",
    "metrics": "print metrics in the OpenMetrics format",
    "sleep": "put tasks to sleep until the next packet for them",
    "wake": "wake tasks that sleep",
    "freeze": "freeze tasks",
    "thaw": "thaw frozen tasks",
    "image": "show the requirements of images and whether they can run here",
    "disk": "create, list and remove named disks",
    "network": "list and inspect networks",
    "doctor": "check this machine",
    "gc": "remove orphaned resources",
}

_METHODS = ("remove", "stop", "kill", "restart", "sleep", "wake", "freeze", "thaw")
FOR_EACH_TASK = {"rm" if method == "remove" else method: method for method in _METHODS}
"""The verbs of one module, `verbs.each_task`, each with its method of the engine's `Runtime`."""

_MODULES = {"rollback": "update", **dict.fromkeys(FOR_EACH_TASK, "each_task")}
"""The modules of verbs that have none of their name."""

_OTHERS = {
    **{verb: f"systemctl {verb} NAME, of a declared task" for verb in "cat disable edit enable reload status".split()},
    "start": "systemctl start NAME, of a declared task; solo5ctl run IMAGE, of a new one",
    "create": "solo5ctl run --declare NAME IMAGE",
    "attach": "solo5ctl logs --follow NAME",
    **dict.fromkeys(("list", "ls"), "solo5ctl ps --all"),
    "top": "solo5ctl stats",
    "volume": "solo5ctl disk",
    "help": "solo5ctl --help, solo5ctl VERB --help",
    "version": "solo5ctl --version",
}
"""Verbs of systemctl and podman, each with what does the same here."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """argparse's formatter with a width; without one, it imports shutil for every option added (startup time)."""

    def __init__(self, prog: str, **settings: Any) -> None:
        try:
            width = int(os.environ.get("COLUMNS", ""))
        except ValueError:
            width = os.get_terminal_size().columns if os.isatty(1) else 0
        super().__init__(prog, **{"width": (width or 80) - 2, **settings})  # a serial console has 0


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises our errors, accepts no abbreviated options, and may `rewrite` words before."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": HelpFormatter, **settings})
        self.rewrite: Callable[[list[str]], list[str]] = list

    @property
    def verb(self) -> str:
        """Return the verb, such as `stop` or `network ls`; empty: all of them are below it."""
        return self.prog.partition(" ")[2]

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as InvalidRequestError, instead of exiting with status 2."""
        sentence = f"{message.removeprefix('argument ')}."
        raise InvalidRequestError(f"{self.verb}: {sentence}" if self.verb else sentence, f"See: {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and raise an error for unknown arguments here, so that it has this parser's prog (the verb)."""
        known, unknown = super().parse_known_args(self.rewrite(list(args)), namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def add_task_names(self) -> None:
        """Add the positional argument NAME..., one or more names of tasks."""
        self.add_argument("names", metavar="NAME", nargs="+", type=task_name, help="name of a task")

    def add_verbs(self) -> Callable[..., "Parser"]:
        """Return a function that adds a verb of this verb: its name, its summary, and the function to run, as `act`."""
        verbs = self.add_subparsers(prog=self.prog, metavar="VERB", required=True, dest="act", parser_class=Parser)

        def add(name: str, summary: str, act: Callable[[argparse.Namespace, "CommandContext"], int]) -> Parser:
            parser: Parser = verbs.add_parser(name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
            parser.add_output_options(json=True)
            parser.set_defaults(act=act)
            return parser

        return add

    def add_output_options(self, *, json: bool | str) -> None:
        """Add --no-color, and --json if the verb prints data; text: its help."""
        if json:
            self.add_argument("--json", action="store_true", help=json if isinstance(json, str) else "print JSON")
        self.add_argument(
            "--no-color", action="store_true", default=argparse.SUPPRESS, help="disable colour, also on a terminal"
        )


def load(verb: str, parser: Parser) -> None:
    """Import the module of a verb, whose `configure` adds the options, and whose `execute` runs the verb."""
    module = import_module(f"solo5_systemd.cli.verbs.{_MODULES.get(verb, verb)}")
    module.configure(parser)
    parser.set_defaults(execute=module.execute)


def build(chosen: Collection[str] = VERBS) -> tuple[Parser, dict[str, Parser]]:
    """Return the top parser with the chosen verbs, and the verbs' parsers by name."""
    top = Parser(
        prog="solo5ctl",
        description="Run Solo5 unikernels as ordinary systemd units.",
        epilog="Help for one verb: solo5ctl VERB --help. Manual: solo5ctl(1).",
    )
    top.add_argument("--version", action="version", version=f"solo5ctl {__version__}")
    top.add_argument("--no-color", action="store_true", help="disable colour, also on a terminal")
    # Before the verb only, and executed by cli/remote.py before anything is parsed.
    top.add_argument("-H", "--host", help="[USER@]HOST[:PORT]: run the verb on another host, by ssh")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True, dest="verb", parser_class=Parser)
    parsers = {
        verb: verbs.add_parser(verb, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
        for verb, summary in VERBS.items()
        if verb in chosen
    }
    return top, parsers


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the verb's arguments; `execute` is the verb's function.

    Raises:
        InvalidRequestError: an unknown argument or a malformed value.
        SystemExit: after --help and --version.
    """
    # Only the parser of the given verb is built: all of them would slow down `ps`.
    top, parsers = build(words[:1] if words and words[0] in VERBS else VERBS)
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb in _OTHERS:
        raise InvalidRequestError(f"{verb} is no verb of solo5ctl.", f"The same is done by: {_OTHERS[verb]}")
    if verb in parsers:
        load(verb, parsers[verb])
    return top.parse_args(words)
