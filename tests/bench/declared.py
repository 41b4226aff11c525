"""What declared tasks cost: a daemon-reload beside so many files, and the CPU time of a start's preparation."""

import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.extent import extent
from tests.bench.figures import Report, times

from solo5_systemd.network.remembered_addresses import ADDRESSES

COUNTS = extent((0, 1, 50, 500), (0, 5))
ROUNDS = extent(7, 1)
ETC = Path("/etc/solo5")
SYSTEM = Path("/run/systemd/system")
MASK = Path("/etc/systemd/system-generators/solo5-generator")
"""As a link to /dev/null it keeps PID 1 from executing the generator (systemd.generator(7))."""

IMAGE = Path("/srv/guests/net.spt")


def declare(name: str, keys: str, *, before: str = "", after: str = "") -> None:
    """Declare a task, with further keys, and sections before and after those of the guest."""
    ETC.mkdir(exist_ok=True)
    own = f"[Unikernel]\nImage={IMAGE}\nArgument={{mirage}}\n"
    (ETC / f"{name}.unikernel").write_text(f"{before}{own}{keys}{after}")


@contextmanager
def cleared() -> Iterator[None]:
    """Stop all tasks of the benchmark at the end of the block, and remove their files, and units named `xbench…`."""
    try:
        yield
    finally:
        paths = [*ETC.glob("bench*"), *SYSTEM.glob("xbench*")]
        names = {path.stem for path in paths if path.suffix != ".toml"}
        # Some are not loaded, after an error.
        units = [f"{name}.{kind}" for name in names for kind in ("socket", "service")]
        subprocess.run(["systemctl", "stop", *units], stderr=subprocess.DEVNULL, check=False)
        for path in (*paths, *ADDRESSES.glob("bench*.json")):
            path.unlink(missing_ok=True)
        reload_ms()


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


def measure(report: Report, _: object) -> None:
    """Add the figures; the floor of a daemon-reload is one without the generator, in turns."""
    with cleared():
        for count in COUNTS:
            for number in range(count):
                declare(f"bench-{number:03}", f"Memory=64M\nPublish={20000 + number}:80\n")
            ours, floor = [], []
            for turn in range(ROUNDS + 1):
                took = reload_ms()
                with masked():
                    least = reload_ms()
                if turn:  # not the first: the unit files of what was declared before
                    ours.append(took)
                    floor.append(least)
            report.add(times(f"daemon-reload, {count} declarations", ours, floor))
        for what, words in (("preparation", ()), ("clear-up", ("--clear",))):
            spent = [preparation_ms(*words, "bench-000") for _ in range(ROUNDS + 1)]
            report.add(times(f"CPU time of a declared task's {what}", spent[1:]))
