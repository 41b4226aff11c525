"""Run tiers of tests side by side, each a target of make: `python3 -m tests.tiers [--at-most N] TIER…`.

Tiers start in the given order. The output of each is kept in build/tiers/TIER.log and printed whole when it ends; a
line every half minute names what is running. A table closes the run; its exit status is 1 if any tier failed.
"""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.bootlib.report import duration

LOGS = Path("build/tiers")
AT_MOST = 3  # on two cores, of which two machines leave half idle
PLACES = {"vm": 2}  # emulated: with three tiers at once it is too slow for time limits of Nomad and systemd
REPORT_INTERVAL_S = 30.0
POLL_INTERVAL_S = 0.2
# A tier whose runner is killed ends, too: make passes the signal on, and `boot` takes its machine away.
_WITH_RUNNER = ("setpriv", "--pdeathsig", "TERM")
_SUMMARY = re.compile(r"(?:=+ )?(\d+ [a-z]+\b.* in [\d.]+s\b.*?)(?: =+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a tier ended: make's exit status, seconds, those of processors, and pytest's closing lines."""

    tier: str
    status: int
    seconds: float
    processor: float
    summaries: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Return the word for the table."""
        return "passed" if self.status == 0 else f"FAILED ({self.status})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A tier that has been started."""

    tier: str
    process: "subprocess.Popen[bytes]"
    log: Path
    began: float

    def seconds(self) -> float:
        """Return for how long it has been running."""
        return time.monotonic() - self.began


def main(words: list[str]) -> int:
    """Run the tiers that *words* name; return the exit status."""
    parser = argparse.ArgumentParser(prog="tests.tiers", description=__doc__, allow_abbrev=False)
    parser.add_argument("--at-most", type=int, default=AT_MOST, metavar="N", help=f"at once (default: {AT_MOST})")
    parser.add_argument("tiers", nargs="+", metavar="TIER", help="a target of make")
    wanted = parser.parse_args(words)
    received: list[int] = []
    # Raised at any moment, an exception would lose sight of a tier that is just being started.
    earlier = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    began = time.monotonic()
    try:
        results = run(wanted.tiers, wanted.at_most, received)
    finally:
        signal.signal(signal.SIGTERM, earlier)
    if received:
        return 128 + received[0]
    print("\n".join(table(results, time.monotonic() - began)), flush=True)
    return 1 if any(result.status for result in results) else 0


def run(tiers: list[str], at_most: int, received: Sequence[int] = ()) -> list[Result]:
    """Run *tiers*, *at_most* of them at once; return their results in the order in which they ended.

    A tier in PLACES counts as several. As soon as a signal is in *received*, end those that run.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    waiting, running, results = list(tiers), list[Running](), list[Result]()
    reported = time.monotonic()
    try:
        while (waiting or running) and not received:
            while waiting and (not running or _places(waiting[0], *(each.tier for each in running)) <= at_most):
                running.append(_start(waiting.pop(0)))
            ended = False
            for each in list(running):
                earlier = _processor_time()  # of what has been waited for: with its end, the tier's
                if each.process.poll() is not None:
                    ended = True
                    running.remove(each)
                    results.append(_conclude(each, _processor_time() - earlier))
            if not ended:
                time.sleep(POLL_INTERVAL_S)
            if time.monotonic() - reported > REPORT_INTERVAL_S:
                reported = time.monotonic()
                print(progress(running, waiting), flush=True)
    finally:
        _end(running)
    return results


def _places(*tiers: str) -> int:
    return sum(PLACES.get(tier, 1) for tier in tiers)


def _start(tier: str) -> Running:
    log = LOGS / f"{tier}.log"
    print(f"tests: {tier} begins", flush=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_WITH_RUNNER, "make", "--no-print-directory", tier],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    return Running(tier=tier, process=process, log=log, began=time.monotonic())


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _conclude(ended: Running, processor: float) -> Result:
    text = ended.log.read_text(errors="replace")
    result = Result(
        tier=ended.tier,
        status=ended.process.returncode,
        seconds=ended.seconds(),
        processor=processor,
        summaries=summaries(text.splitlines()),
    )
    print(f"\n──── {ended.tier}: {result.verdict}, {duration(result.seconds)}. Its output:\n{text}", flush=True)
    return result


def _end(running: list[Running]) -> None:
    for each in running:
        os.killpg(each.process.pid, signal.SIGTERM)
    for each in running:
        each.process.wait()


def summaries(lines: Iterable[str]) -> tuple[str, ...]:
    """Return pytest's closing lines, without their frames."""
    return tuple(found[1] for line in lines if (found := _SUMMARY.fullmatch(line)))


def progress(running: list[Running], waiting: list[str]) -> str:
    """Return a line on what is running, for how long, and what has not begun."""
    now = ", ".join(f"{each.tier} ({duration(each.seconds())}, {_last_line(each.log)})" for each in running)
    return f"tests: running: {now}" + (f"; waiting: {' '.join(waiting)}" if waiting else "")


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1000))
        return last_line(file.read().decode(errors="replace"))


def last_line(text: str, length: int = 60) -> str:
    """Return the last line of *text* that is not empty, its middle left out where it is long."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else "no output yet"
    return last if len(last) <= length else f"{last[: length // 2]}…{last[-length // 2 :]}"


def table(results: list[Result], seconds: float) -> list[str]:
    """Return the lines of a table of *results*, which took *seconds* altogether."""
    width = max((len(result.tier) for result in results), default=0)
    rows = [
        f"{result.tier:<{width}}  {duration(result.seconds):>13}  {result.verdict}, "
        f"{duration(result.processor)} of processor time{': ' * bool(result.summaries)}{'; '.join(result.summaries)}"
        for result in results
    ]
    failed = [result.tier for result in results if result.status]
    verdict = f"FAILED: {' '.join(failed)}" if failed else "all passed"
    return ["", "──── tiers, in the order of their ends", *rows, f"{duration(seconds)} altogether: {verdict}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
