"""Us beside what a user would pick instead, in turns: each turn takes every peer once, alone on the machine."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import processes
from tests.bench.figures import Spread, spread
from tests.bench.peers import nomad, shell
from tests.bench.peers.subjects import ADDRESS, AT_ONCE, MissingError, Peer, Subject

CROWDS = (1, 100)
ROUNDS = 5
"""Starts of each kind in each turn."""

SETTLE_S = 1.0
"""Before memory and processes are counted: what has ended is reaped by then."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one peer beside so many tasks of its own.

    Attributes:
        start: milliseconds until it runs, as its caller sees it.
        answer: milliseconds until it answers at its published port.
        stop: milliseconds.
        pairs: starts and stops per second, `AT_ONCE` at a time; the lowest and the highest of the turns.
        cpu: milliseconds of processor time of the machine for one such pair.
        memory: MB of all processes above the machine without the peer.
        processes: the same.
    """

    peer: str
    caller: str
    tasks: int
    start: Spread
    answer: Spread
    stop: Spread
    pairs: Spread
    cpu: Spread
    memory: Spread
    processes: Spread


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows, and what is missing for the others: one sentence each, by peer."""

    rows: Sequence[Row]
    missing: Mapping[str, str]


Samples = dict[str, list[float]]


@dataclass(kw_only=True)
class Comparing:
    """The measurements of all peers.

    Attributes:
        turns: how often each peer has its turn.
        crowds: two numbers of tasks beside, ascending.
    """

    turns: int
    crowds: Sequence[int]
    samples: dict[tuple[str, int], Samples] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    missing: dict[str, str] = field(default_factory=dict)

    async def everything(self, peers: Sequence[Peer]) -> Comparison:
        for peer in peers:
            try:
                peer.prepare()
            except MissingError as error:
                self.missing[peer.name] = str(error)
        for _ in range(self.turns):
            for peer in peers:
                await self._visit(peer)
        rows = self._rows(peers)
        return Comparison(rows=rows, missing=self.missing)

    def _rows(self, peers: Sequence[Peer]) -> list[Row]:
        return [
            Row(
                peer=peer.name,
                caller=peer.caller,
                tasks=crowd,
                **{name: spread(values) for name, values in self.samples[peer.name, crowd].items()},
            )
            for peer in peers
            if peer.name not in self.missing
            for crowd in self.crowds
        ]

    async def _visit(self, peer: Peer) -> None:
        """Measure a peer, unless something is missing; what fails is missing."""
        if peer.name in self.missing:
            return
        await asyncio.to_thread(processes.end_services)
        before = processes.total(set())
        try:
            async with peer.opened() as subject:
                for crowd in self.crowds:
                    await subject.grow(crowd)
                    await self._beside(subject, before, self.samples[peer.name, crowd])
                await subject.clear()
        except* (MissingError, RuntimeError, TimeoutError) as errors:
            self.missing[peer.name] = _sentence(errors)
        print(table(Comparison(rows=self._rows([peer]), missing={})), flush=True)

    async def _beside(self, subject: Subject, before: tuple[float, int], found: Samples) -> None:
        await asyncio.sleep(SETTLE_S)
        for name, now, then in zip(("memory", "processes"), processes.total(subject.harness()), before, strict=True):
            found[name].append(now - then)
        for _ in range(ROUNDS):
            found["start"].append(await subject.start())
            found["stop"].append(await subject.stop())
            found["answer"].append(await subject.start("port"))
            found["stop"].append(await subject.stop())
        count = AT_ONCE * 2
        spent = processes.of_machine()
        found["pairs"].append(count / await subject.pairs(count))
        found["cpu"].append((processes.of_machine() - spent) / count / 1000)


def _sentence(errors: BaseExceptionGroup[Exception]) -> str:
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return " ".join(str(first).split())[:300]


async def compare(directory: Path, turns: int) -> Comparison:
    """Compare us with every peer that is there.

    Args:
        directory: of peers that were built elsewhere.
        turns: how often each peer has its turn.
    """
    await shell.executed(("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"))
    return await Comparing(turns=turns, crowds=CROWDS).everything([*shell.peers(), *nomad.peers(directory)])


def table(comparison: Comparison) -> str:
    """Return the table of the comparison, in Markdown, as docs/internals/peers.md has it."""
    lines = [
        "| called by | | beside | running, ms | first answer, ms | stopped, ms | pairs/s | CPU per pair, ms "
        "| MB | MB per task | processes per task |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in comparison.rows:
        few, many = (one for one in comparison.rows if one.peer == row.peer)
        tasks = many.tasks - few.tasks
        each = [f"{(many.memory.median - few.memory.median) / tasks:.1f}"]
        each += [f"{(many.processes.median - few.processes.median) / tasks:.1f}"]
        times = [text(value) for value in (row.start, row.answer, row.stop, row.pairs)]
        cells = [row.caller, row.peer, str(row.tasks), *times, f"{row.cpu.median:.0f}", number(row.memory.median)]
        cells += each if row is many else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"\nleft out: {name}: {reason}" for name, reason in comparison.missing.items()]
    return "\n".join(lines)


def text(value: Spread) -> str:
    """Return a median with its spread."""
    return f"{number(value.median)} ({number(value.low)}–{number(value.high)})"


def number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}"
