"""What declared tasks cost: a daemon-reload with 0, 1, 50 and 500 files, and the CPU time of a start's preparation.

In a booted machine:  python3 -m tests.bench.declared [--rounds N] [--counts 0 1 50 500]
"""

import argparse
import os
import resource
import statistics
import subprocess
import time
from pathlib import Path

ETC = Path("/etc/solo5")
MASK = Path("/etc/systemd/system-generators/solo5-generator")
"""As a link to /dev/null it keeps PID 1 from executing the generator (systemd.generator(7))."""

IMAGE = Path("/srv/guests/net.spt")
NAME = "bench-{:03}"


def declare(count: int) -> None:
    """Have so many files, each of a task with a NIC and a port; none is started."""
    for path in ETC.glob("bench-*.unikernel"):
        path.unlink()
    for number in range(count):
        text = f"[Unikernel]\nImage={IMAGE}\nMemory=64M\nPublish={20000 + number}:80\nArgument={{mirage}}\n"
        (ETC / f"{NAME.format(number)}.unikernel").write_text(text)


def reload_ms(rounds: int) -> float:
    """Return the median time of a daemon-reload, in milliseconds, after one that is not counted."""
    times = []
    for _ in range(rounds + 1):
        begun = time.monotonic()
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        times.append(1000 * (time.monotonic() - begun))
    return statistics.median(times[1:])


def preparation_ms(rounds: int, *words: str) -> float:
    """Return the median CPU time of a preparation as PID 1 executes it, in milliseconds: user and system."""
    times = []
    for _ in range(rounds + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(["/usr/bin/python3", "-I", "-m", "solo5_systemd.pid1", "prepare", *words], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return statistics.median(times[1:])


def main() -> None:
    """Print the figures, with the load beside which they were measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--counts", type=int, nargs="*", default=[0, 1, 50, 500])
    arguments = parser.parse_args()
    ETC.mkdir(exist_ok=True)
    print(f"load average at the beginning: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    declare(0)
    MASK.parent.mkdir(exist_ok=True)
    MASK.symlink_to("/dev/null")
    try:
        print(f"daemon-reload without the generator: {reload_ms(arguments.rounds):.0f} ms")
    finally:
        MASK.unlink()
    for count in arguments.counts:
        declare(count)
        print(f"daemon-reload with {count} files: {reload_ms(arguments.rounds):.0f} ms")
    declare(1)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    name = NAME.format(0)
    print(f"CPU time of a preparation: {preparation_ms(arguments.rounds, name):.0f} ms")
    print(f"CPU time of a clear-up: {preparation_ms(arguments.rounds, '--clear', name):.0f} ms")
    declare(0)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
