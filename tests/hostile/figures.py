"""What it costs to read hostile images: processor time and memory of each, and a table of them all."""

import resource
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.hostile.images import Hostile
from tests.hostile.judge import Verdict, judge

TIME_LIMIT_MS = 50.0
MEMORY_LIMIT_MIB = 64.0
_AGAIN = 3  # how often a slow image is read: the least of these times is its own, what is above it the machine's


@dataclass(kw_only=True)
class Figures:
    """Of a corpus.

    Attributes:
        outcomes: how many images of each first mutation were read, and how many refused.
        times: processor time of each image, in milliseconds.
        slowest: the image of the longest time.
        memory: the most that Python allocated for one image, in MiB.
        largest: the image that this was for.
        faults: an image and what is wrong with how it was taken.
    """

    outcomes: Counter[tuple[str, bool]] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    slowest: str = ""
    memory: float = 0.0
    largest: str = ""
    faults: list[str] = field(default_factory=list)

    def add(self, image: Hostile) -> None:
        """Read an image, and count it."""
        verdict, milliseconds = _timed(image)
        if not self.times or milliseconds > max(self.times):
            milliseconds = min(milliseconds, *(_timed(image)[1] for _ in range(_AGAIN)))
            self.slowest = str(image) if milliseconds > max(self.times, default=0.0) else self.slowest
        self.times.append(milliseconds)
        self.outcomes[image.mutations[0], verdict.facts is not None] += 1
        mebibytes = _memory(image)
        if mebibytes > self.memory:
            self.memory, self.largest = mebibytes, str(image)
        for fault in (
            verdict.fault,
            f"{milliseconds:.1f} ms of processor time" if milliseconds > TIME_LIMIT_MS else "",
            f"{mebibytes:.1f} MiB of memory" if mebibytes > MEMORY_LIMIT_MIB else "",
        ):
            if fault:
                self.faults.append(f"{image}: {fault}")

    def lines(self) -> Iterator[str]:
        """Yield a report."""
        kinds = sorted({kind for kind, _ in self.outcomes})
        yield f"{'first mutation':<18}{'read':>8}{'refused':>9}"
        yield from (f"{kind:<18}{self.outcomes[kind, True]:>8}{self.outcomes[kind, False]:>9}" for kind in kinds)
        read = sum(count for (_, is_read), count in self.outcomes.items() if is_read)
        yield f"{'all':<18}{read:>8}{len(self.times) - read:>9}"
        times = sorted(self.times)
        median, late = times[len(times) // 2], times[len(times) * 99 // 100]
        yield f"processor time: median {median:.2f} ms, p99 {late:.2f} ms, most {times[-1]:.2f} ms: {self.slowest}"
        yield f"memory: at most {self.memory:.2f} MiB for an image: {self.largest}"
        yield f"memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB at most"
        yield f"faults: {len(self.faults)}"


def _timed(image: Hostile) -> tuple[Verdict, float]:
    began = time.thread_time()
    verdict = judge(image)
    return verdict, 1e3 * (time.thread_time() - began)


def _memory(image: Hostile) -> float:
    tracemalloc.start()
    try:
        judge(image)
        return tracemalloc.get_traced_memory()[1] / (1 << 20)
    finally:
        tracemalloc.stop()
