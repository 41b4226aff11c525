"""How fast it is, beside what the machine could do at best, measured in one run: run on a booted machine as root.

Each figure has a floor, and the two are taken in turn, so that a machine that slows down slows down both. While the
floor of starts is measured, no plugin runs. The ratio is what to quote. tests/bench/README.md says what each figure
and floor is.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import activation, console, declared, disks, flood, groups, paths, processes, scale, shell
from tests.bench.driver import SETTINGS, Driver, driver
from tests.bench.extent import SHORT, extent
from tests.bench.figures import Figure, Report, times
from tests.bench.floor import Floor, floor

AT_ONCE = 16
CROWDS = (1, 100, 500)
RECOVERED = extent(1000, 20)
TURNS = extent(4, 1)
"""Turns of floor and ours beside each crowd; each turn of ours has a new plugin process."""

IDLE = extent(20.0, 1.0)
"""Seconds that an idle driver is watched."""

SETTLE = extent(12.0, 0.5)
"""Seconds before that: the relay is idle ten seconds after a console's last line, and a service without tasks exits."""


@dataclass(kw_only=True)
class Side:
    """The measurements of ours, or of the floor, in all turns."""

    single: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    pairs: int = 0
    rates: list[float] = field(default_factory=list)
    cpu: Counter[str] = field(default_factory=Counter)

    async def turn(self, subject: Driver | Floor, rounds: int) -> None:
        await subject.starts(1, AT_ONCE)  # not measured: imports, and the rest of the other side's work
        self.single += await subject.starts(max(1, rounds // TURNS), 1)
        self.together += await subject.starts(max(1, rounds // 5 // TURNS), AT_ONCE)
        count = AT_ONCE * 2 * max(1, rounds // 10 // TURNS)
        took = await subject.pairs(count, AT_ONCE)
        self.pairs += count
        self.rates.append(count / took.seconds)
        self.cpu.update(took.cpu)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Ours and the floor, in turn.

    Attributes:
        rounds: how many single starts; what is slower has fewer.
        crowds: numbers of tasks that run beside what is measured, ascending.
    """

    driver: Driver
    floor: Floor
    report: Report
    rounds: int
    crowds: Sequence[int]

    async def everything(self) -> None:
        before = processes.count()
        await self.launch()
        await self.ps(0)
        await self.memory(0)
        await self.idle(0)
        await self.fingerprint()
        for crowd in self.crowds:
            await scale.started(self.driver, self.report, crowd)
            await self.driver.do("watch")
            await self.beside(crowd)
        most = self.crowds[-1]
        await asyncio.to_thread(scale.services_killed, self.report, most)
        spare = (processes.count() - before - most) / most
        self.report.add(Figure(name=f"processes beside the tender, per task of {most}", unit="", ours=spare))
        await scale.started(self.driver, self.report, max(RECOVERED, most))
        for at_once in (1, AT_ONCE):
            await self.recover(at_once)
        await scale.removed(self.driver, self.report)

    async def beside(self, crowd: int) -> None:
        where = f"beside {crowd}"
        ours, floors = Side(), Side()
        for _ in range(TURNS):
            await self.driver.kill_plugin()
            await floors.turn(self.floor, self.rounds)
            await self.driver.relaunch_plugin()
            await ours.turn(self.driver, self.rounds)
        self.report.add(times(f"StartTask {where}", ours.single, floors.single, plot="start", tasks=crowd))
        self.report.add(times(f"StartTask {where}, {AT_ONCE} at a time", ours.together, floors.together))
        self.pairs(f"start, stop and destroy {where}, {AT_ONCE} at a time", ours, floors, crowd)
        if crowd == 1:
            pings = await self.driver.starts(max(1, self.rounds // 2), 1, until="ping")
            self.report.add(times(f"StartTask {where} until it answers a ping", pings, floors.single))
            return
        await self.ps(crowd)
        await self.memory(crowd)
        await self.idle(crowd)
        if crowd == CROWDS[1]:
            await self.looks(crowd)

    def pairs(self, name: str, ours: Side, floors: Side, crowd: int) -> None:
        """Pairs per second in each turn, and CPU time per pair, by process or cgroup."""
        self.report.add(times(name, ours.rates, floors.rates, unit="/s", plot="pairs", tasks=crowd))
        for part in (*ours.cpu, None):
            spent = [side.cpu.total() if part is None else side.cpu[part] for side in (ours, floors)]
            each = [time / side.pairs / 1000 for time, side in zip(spent, (ours, floors), strict=True)]
            name = f"… CPU per pair: {part or 'in all'}"
            self.report.add(Figure(name=name, unit="ms", ours=each[0], floor=round(each[1], 2)))

    async def ps(self, tasks: int) -> None:
        ours, floors = [], []
        for _ in range(self.rounds):
            floors.append(processes.whole("python3", "-I", "-c", "import asyncio"))
            ours.append(processes.whole("solo5ctl", "ps"))
        self.report.add(times(f"solo5ctl ps, {tasks} tasks", ours, floors))

    async def looks(self, tasks: int) -> None:
        """Whole processes; `stats` sleeps a tenth of a second between its two looks, and so does its floor."""
        imports = "import asyncio, time; time.sleep({})"
        for sleep, words in ((0.1, ("stats", "--no-stream", "--interval", "0.1")), (0, ("metrics",))):
            ours, floors = [], []
            for _ in range(self.rounds):
                floors.append(processes.whole("python3", "-I", "-c", imports.format(sleep)))
                ours.append(processes.whole("solo5ctl", *words))
            self.report.add(times(f"solo5ctl {words[0]}, {tasks} tasks", ours, floors))

    async def launch(self) -> None:
        ours: list[float] = []
        floors: list[float] = []
        for _ in range(self.rounds):
            floors.append(processes.whole("python3", "-I", "-c", "import grpc.aio"))
            ours += (await self.driver.do("launch", count=1)).milliseconds
        self.report.add(times("plugin, from exec to handshake", ours, floors))

    async def memory(self, tasks: int) -> None:
        for name, pid in processes.ours(await self._pid()).items():
            figure = f"memory of {name}, {tasks} tasks"
            memory = processes.memory(pid)
            self.report.add(Figure(name=figure, unit="MB", ours=memory, plot=f"memory: {name}", tasks=tasks))

    async def idle(self, tasks: int) -> None:
        """As an agent leaves it alone: with its streams open, and statistics every second."""
        await self.driver.do("watch")
        plugin = await self._pid()
        await asyncio.sleep(SETTLE)
        for name, spent in (await processes.watched(plugin, IDLE)).items():
            cpu = spent / IDLE * 60
            self.report.add(Figure(name=f"CPU of {name}, {tasks} idle tasks", unit="ms/min", ours=cpu))

    async def fingerprint(self) -> None:
        pid = await self._pid()
        before = processes.used(pid)
        looks = (await self.driver.do("fingerprint", count=self.rounds)).milliseconds
        cost = (processes.used(pid) - before) / len(looks)
        self.report.add(times("Fingerprint, one look", looks))
        self.report.add(Figure(name="CPU of the plugin for one look", unit="ms", ours=cost))

    async def recover(self, at_once: int) -> None:
        await self.driver.do("replace")
        took = await self.driver.do("recover", at_once=at_once)
        name = f"RecoverTask of {len(took.milliseconds)}, {at_once} at a time"
        self.report.add(times(name, took.milliseconds))
        known = await self.driver.do("recover", at_once=at_once)
        self.report.add(Figure(name=f"{name}: all of them", unit="s", ours=took.seconds, floor=known.seconds))

    async def _pid(self) -> int:
        return (await self.driver.do("drop")).pid


def tasks(report: Report, options: argparse.Namespace) -> None:
    """Add the figures of tasks under the driver."""

    async def measured() -> None:
        async with floor(SETTINGS) as least, driver() as subject:
            bench = Bench(driver=subject, floor=least, report=report, rounds=options.rounds, crowds=options.tasks)
            await bench.everything()

    asyncio.run(measured())


MEASUREMENTS: Mapping[str, Callable[[Report, argparse.Namespace], None]] = {
    "paths": paths.measure,
    "tasks": tasks,
    "shell": shell.measure,
    "disks": disks.measure,
    "declared": declared.measure,
    "activation": activation.measure,
    "flood": flood.measure,
    "console": console.measure,
    "groups": groups.measure,
}
"""What is measured, in this order."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20, help="single starts for each figure, at least 10 (20)")
    parser.add_argument(
        "--tasks", type=int, nargs="+", default=CROWDS, help="numbers of tasks beside, ascending (1 100 500)"
    )
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--only", choices=MEASUREMENTS, nargs="+", help="leave out everything else")
    options = parser.parse_args()
    options.rounds = options.rounds if SHORT else max(10, options.rounds)
    report = Report(options.json)
    for name in MEASUREMENTS:
        if name in (options.only or MEASUREMENTS):
            MEASUREMENTS[name](report, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
