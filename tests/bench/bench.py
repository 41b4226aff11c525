"""How fast it is, beside what the machine could do at best, measured in one run: run on a booted machine as root.

Each figure has a floor, and the two are taken in turn, so that a machine that slows down slows down both. The ratio is
what to quote. docs/performance.md says what each figure and floor is.
"""

import argparse
import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.bench import processes, sampling
from tests.bench.console import consoles
from tests.bench.driver import Driver, driver
from tests.bench.figures import Figure, Report, times
from tests.bench.floor import Floor, floor, whole_process

AT_ONCE = 16
CROWDS = (1, 100, 500)
RECOVERED = 1000
IDLE = 20.0
"""Seconds that an idle driver is watched."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Ours and the floor, in turn.

    Attributes:
        rounds: how many single starts; what is slower has fewer.
    """

    driver: Driver
    floor: Floor
    report: Report
    rounds: int

    async def everything(self) -> None:
        before = processes.count()
        await self.launch()
        await self.ps(0)
        await self.memory(0)
        await self.idle(0)
        await self.fingerprint()
        await self.sampling()
        for crowd in CROWDS:
            await self.driver.do("grow", count=crowd)
            await self.driver.do("watch")
            await self.beside(crowd)
        spare = (processes.count() - before - CROWDS[-1]) / CROWDS[-1]
        self.report.add(Figure(name=f"processes beside the tender, per task of {CROWDS[-1]}", unit="", ours=spare))
        await self.driver.do("grow", count=RECOVERED)
        for at_once in (1, AT_ONCE):
            await self.recover(at_once)

    async def beside(self, crowd: int) -> None:
        where = f"beside {crowd}"
        await self.starts(f"StartTask {where}", 1, self.rounds)
        await self.starts(f"StartTask {where}, {AT_ONCE} at a time", AT_ONCE, self.rounds // 5)
        await self.pairs(f"start, stop and destroy {where}, {AT_ONCE} at a time")
        if crowd == CROWDS[0]:
            await self.starts(f"StartTask {where} until it answers a ping", 1, self.rounds // 2, ping=True)
            return
        await self.ps(crowd)
        await self.memory(crowd)
        await self.idle(crowd)
        if crowd == CROWDS[1]:
            await self.looks(crowd)

    async def starts(self, name: str, at_once: int, rounds: int, *, ping: bool = False) -> None:
        ours: list[float] = []
        floors: list[float] = []
        for _ in range(rounds):
            floors += await self.floor.start(at_once)
            await self.floor.drop()
            ours += (await self.driver.do("start", count=at_once, ping=ping)).milliseconds
            await self.driver.do("drop")
        self.report.add(times(name, ours, floors))

    async def pairs(self, name: str) -> None:
        """Per second, of all chunks together."""
        count, chunks = AT_ONCE * 2, max(1, self.rounds // 10)
        ours = floors = 0.0
        for _ in range(chunks):
            floors += await self.floor.pairs(count, AT_ONCE)
            ours += (await self.driver.do("pairs", count=count, at_once=AT_ONCE)).seconds
        done = count * chunks
        self.report.add(Figure(name=name, unit="/s", ours=done / ours, floor=done / floors))

    async def ps(self, tasks: int) -> None:
        ours, floors = [], []
        for _ in range(self.rounds // 4):
            floors.append(whole_process("python3", "-I", "-c", "import dbus_next.aio"))
            ours.append(whole_process("solo5ctl", "ps"))
        self.report.add(times(f"solo5ctl ps, {tasks} tasks", ours, floors))

    async def looks(self, tasks: int) -> None:
        """Whole processes; `stats` sleeps a tenth of a second between its two looks, and so does its floor."""
        imports = "import dbus_next.aio, time; time.sleep({})"
        for sleep, words in ((0.1, ("stats", "--no-stream", "--interval", "0.1")), (0, ("metrics",))):
            ours, floors = [], []
            for _ in range(self.rounds // 4):
                floors.append(whole_process("python3", "-I", "-c", imports.format(sleep)))
                ours.append(whole_process("solo5ctl", *words))
            self.report.add(times(f"solo5ctl {words[0]}, {tasks} tasks", ours, floors))

    async def sampling(self) -> None:
        """What the driver spends on statistics alone, beside what gRPC takes to write as many bytes."""
        floor = await asyncio.to_thread(sampling.cost, "beat")
        for guests in ("idle", "busy"):
            ours = await asyncio.to_thread(sampling.cost, guests)
            name = f"CPU of a sample for Nomad, {sampling.TASKS} {guests} tasks every second"
            self.report.add(Figure(name=name, unit="ms", ours=ours, floor=floor))

    async def launch(self) -> None:
        ours: list[float] = []
        floors: list[float] = []
        for _ in range(self.rounds // 4):
            floors.append(whole_process("python3", "-I", "-c", "import grpc.aio"))
            ours += (await self.driver.do("launch", count=1)).milliseconds
        self.report.add(times("plugin, from exec to handshake", ours, floors))

    async def memory(self, tasks: int) -> None:
        for name, pid in processes.ours(await self._pid()).items():
            self.report.add(Figure(name=f"memory of {name}, {tasks} tasks", unit="MB", ours=processes.memory(pid)))

    async def idle(self, tasks: int) -> None:
        """As an agent leaves it alone: with its streams open, and statistics every second."""
        await self.driver.do("watch")
        running = processes.ours(await self._pid())
        before = {name: processes.used(pid) for name, pid in running.items()}
        await asyncio.sleep(IDLE)
        for name, pid in running.items():
            spent = (processes.used(pid).cpu - before[name].cpu) / IDLE * 60
            self.report.add(Figure(name=f"CPU of {name}, {tasks} idle tasks", unit="ms/min", ours=spent))

    async def fingerprint(self) -> None:
        pid = await self._pid()
        before = processes.used(pid)
        looks = (await self.driver.do("fingerprint", count=self.rounds)).milliseconds
        spent = processes.used(pid)
        self.report.add(times("Fingerprint, one look", looks))
        cost = (spent.cpu - before.cpu) / len(looks)
        self.report.add(Figure(name="CPU of the plugin for one look", unit="ms", ours=cost))
        assert spent.children == before.children, "a look at the machine has started a process"

    async def recover(self, at_once: int) -> None:
        await self.driver.do("replace")
        took = await self.driver.do("recover", at_once=at_once)
        name = f"RecoverTask of {len(took.milliseconds)}, {at_once} at a time"
        self.report.add(times(name, took.milliseconds))
        least = await self.floor.listing()
        self.report.add(Figure(name=f"{name}: all of them", unit="s", ours=took.seconds, floor=least))

    async def _pid(self) -> int:
        return (await self.driver.do("drop")).pid


async def measure(rounds: int, report: Report) -> None:
    async with floor() as least, driver() as subject:
        await Bench(driver=subject, floor=least, report=report, rounds=rounds).everything()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20, help="single starts for each figure, at least 10 (20)")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    arguments = parser.parse_args()
    report = Report()
    rounds = max(10, arguments.rounds)
    asyncio.run(measure(rounds, report))
    consoles(report, rounds)
    if arguments.json:
        report.write(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
