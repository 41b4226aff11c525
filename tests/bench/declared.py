"""What declared tasks cost: a daemon-reload beside so many files, and the CPU time of a start's preparation.

In a booted machine, as root:  python3 -m tests.bench.declared
"""

import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.extent import extent
from tests.bench.figures import Report, times

COUNTS = extent((0, 1, 50, 500), (0, 5))
ROUNDS = extent(7, 1)
ETC = Path("/etc/solo5")
MASK = Path("/etc/systemd/system-generators/solo5-generator")
"""As a link to /dev/null it keeps PID 1 from executing the generator (systemd.generator(7))."""

IMAGE = Path("/srv/guests/net.spt")
NAME = "bench-{:03}"


def declare(count: int) -> None:
    """Have so many files, each of a task with a NIC and a port; none is started."""
    ETC.mkdir(exist_ok=True)
    for path in ETC.glob("bench-*.unikernel"):
        path.unlink()
    for number in range(count):
        text = f"[Unikernel]\nImage={IMAGE}\nMemory=64M\nPublish={20000 + number}:80\nArgument={{mirage}}\n"
        (ETC / f"{NAME.format(number)}.unikernel").write_text(text)


@contextmanager
def masked() -> Iterator[None]:
    """Have a daemon-reload without the generator."""
    MASK.parent.mkdir(exist_ok=True)
    MASK.symlink_to("/dev/null")
    try:
        yield
    finally:
        MASK.unlink()


def reload_ms() -> float:
    """Return the milliseconds of a daemon-reload."""
    begun = time.monotonic()
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    return 1000 * (time.monotonic() - begun)


def preparation_ms(*words: str) -> float:
    """Return the CPU time of a preparation as PID 1 executes it, in milliseconds: user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["/usr/bin/python3", "-I", "-m", "solo5_systemd.pid1", "prepare", *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(report: Report) -> None:
    """Add the figures; the floor of a daemon-reload is one without the generator, in turns."""
    try:
        for count in COUNTS:
            declare(count)
            ours, floor = [], []
            for turn in range(ROUNDS + 1):
                took = reload_ms()
                with masked():
                    least = reload_ms()
                if turn:  # not the first: the unit files of what was declared before
                    ours.append(took)
                    floor.append(least)
            report.add(times(f"daemon-reload, {count} declarations", ours, floor))
        declare(1)
        reload_ms()
        for what, words in (("preparation", ()), ("clear-up", ("--clear",))):
            spent = [preparation_ms(*words, NAME.format(0)) for _ in range(ROUNDS + 1)]
            report.add(times(f"CPU time of a declared task's {what}", spent[1:]))
    finally:
        declare(0)
        reload_ms()


if __name__ == "__main__":
    measure(Report())
