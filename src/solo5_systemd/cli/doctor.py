"""`solo5ctl doctor`: each fact about this machine that matters, and what to do about it."""

import asyncio
from argparse import Namespace
from collections.abc import Sequence

from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import table, visible
from solo5_systemd.cli.screen import Screen
from solo5_systemd.cli.session import Session
from solo5_systemd.host.facts import Fact, Verdict, facts
from solo5_systemd.host.probe import probe

HEADER = ("FACT", "VERDICT", "VALUE")
_COLOURS = {Verdict.OK: "green", Verdict.LIMITED: "yellow", Verdict.BROKEN: "red"}


def configure(parser: Parser) -> None:
    parser.add_output_options(json=True)


def execute(arguments: Namespace, session: Session) -> int:
    found = facts(asyncio.run(probe()))
    if arguments.json:
        session.screen.json([_json(fact) for fact in found])
    else:
        session.screen.write(_text(found, session.screen))
    return int(any(fact.verdict is Verdict.BROKEN for fact in found))


def _text(found: Sequence[Fact], screen: Screen) -> str:
    """A table, each line followed by what is to be done about it."""
    rows = [(fact.name, fact.verdict, fact.value) for fact in found]
    header, *lines = table(HEADER, rows, lambda column, cell: _paint(column, cell, screen)).splitlines()
    advice = [f"\n    {visible(fact.advice)}" if fact.advice else "" for fact in found]
    return "".join(f"{line}\n" for line in (header, *map("".join, zip(lines, advice, strict=True))))


def _json(fact: Fact) -> dict[str, str]:
    document = {"name": fact.name, "value": fact.value, "verdict": fact.verdict.value}
    return document | {"advice": fact.advice} if fact.advice else document


def _paint(column: str, cell: str, screen: Screen) -> str:
    return screen.paint(cell, _COLOURS[Verdict(cell.rstrip())]) if column == "VERDICT" else cell
