"""`solo5ctl doctor`: checks this machine, and lists orphans."""

import asyncio
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.sanitize import printable
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import table
from solo5_systemd.cli.terminal import Screen
from solo5_systemd.declared.declaration import Declaration, conflicts, parse_declaration
from solo5_systemd.declared.files import declarations, host_names, read_sources
from solo5_systemd.declared.other_units import check_effect, check_free, of_generators, unit_files
from solo5_systemd.declared.template import is_template, parse_template
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.host.checks import Fact, Host, Verdict, facts, limited, routes
from solo5_systemd.host.probe import overtaken_guests, probe
from solo5_systemd.journal.console import storage_problem
from solo5_systemd.settings.files import ETC, read_settings
from solo5_systemd.unit.state import ActiveState

HEADER = ("FACT", "VERDICT", "VALUE")
_COLOURS = {Verdict.OK: "green", Verdict.LIMITED: "yellow", Verdict.BROKEN: "red"}


def configure(parser: Parser) -> None:
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    good: list[Declaration] = []
    found = [*facts(asyncio.run(_probed(context))), *(routes(overtaken_guests()) if context.root else ())]
    found += [*_declarations(good), *_starts(good, context), *_orphans(context)]
    context.show(arguments, lambda: [_json(fact) for fact in found], lambda: _text(found, context.screen))
    return int(any(fact.verdict is Verdict.BROKEN for fact in found))


async def _probed(context: CommandContext) -> Host:
    host = await probe()
    # Only root can see it, and only of a journald that runs.
    if not context.root or not host.booted or host.namespace_problem:
        return host
    return replace(host, console_problem=await storage_problem(host.log_namespace))


def _declarations(good: list[Declaration]) -> Iterator[Fact]:
    """Yield a fact for each declaration that is refused, or their number, and for pairs that cannot run together.

    `good` gets those in order that are no template.
    """
    parsed: list[Declaration] = []
    refused = 0
    try:
        names = declarations(ETC)
        served = read_settings(ETC).served
    except Solo5Error as error:
        yield limited("declarations", "check failed", str(error))
        return
    generated, units = of_generators(), unit_files()
    for name in names:
        try:
            check_free(name, generated, units)
            check_effect(name)
            sources = read_sources(name, ETC)
            parse = parse_template if is_template(name) else parse_declaration
            parsed.append(parse(name, sources, host=host_names(), served=served))
        except Solo5Error as error:
            refused += 1
            yield limited("declaration", name, str(error))
    good += (each for each in parsed if not each.stand_ins)
    for sentence in conflicts(good):
        yield limited("declarations", sentence.partition(" is in ")[0], sentence)
    if not refused:
        yield Fact(name="declarations", value=f"{len(parsed) or 'none'}")


def _starts(declared: Sequence[Declaration], context: CommandContext) -> Iterator[Fact]:
    """Yield a fact for each task that could not start, or start again, or is not started; only root can see it."""

    async def check(engine: Runtime) -> list[Fact]:
        found: list[Fact] = []
        for each in declared:
            try:
                await engine.starter.check_declared(each.workload)
            except Solo5Error as error:
                found.append(limited("declaration", f"{each.workload.name} could not start now", str(error)))
            socket = f"{each.workload.name}.socket"
            if each.workload.idle_stops and await engine.backends.units.active_state(socket) is ActiveState.FAILED:
                value = f"{each.workload.name} is not started for packets"
                advice = f"{socket} has failed: see `systemctl status {socket}`, then: systemctl restart {socket}"
                found.append(limited("declaration", value, advice))
        return found

    if declared and context.root:
        with suppress(Solo5Error):  # what the engine lacks is a fact of its own
            yield from context.run(check)


def _orphans(context: CommandContext) -> Iterator[Fact]:
    """Yield a fact for each orphan, or one that there is none or that the check failed."""
    try:
        found = context.run(lambda engine: engine.gc.orphans(), needs_root=False)
    except Solo5Error as error:
        # Not BROKEN: what the engine lacks is a fact of its own.
        yield limited("orphans", "check failed", str(error))
        return
    for each in found:
        advice = f"{each.reason[:1].upper()}{each.reason[1:]}. Remove it: solo5ctl gc"
        yield limited("orphan", f"{each.kind} {each.subject}", advice)
    if not found:
        yield Fact(name="orphans", value="none")


def _text(found: Sequence[Fact], screen: Screen) -> str:
    """Return a table, each row followed by its advice."""
    rows = [(fact.name, fact.verdict, fact.value) for fact in found]
    paint = {"VERDICT": lambda cell: screen.paint(cell, _COLOURS[Verdict(cell.rstrip())])}
    header, *lines = table(HEADER, rows, paint).splitlines()
    advice = [f"\n    {printable(fact.advice)}" if fact.advice else "" for fact in found]
    return "".join(f"{line}\n" for line in (header, *map("".join, zip(lines, advice, strict=True))))


def _json(fact: Fact) -> dict[str, str]:
    document = {"name": fact.name, "value": fact.value, "verdict": fact.verdict.value}
    return document | {"advice": fact.advice} if fact.advice else document
