"""What each setting of a task's sandbox costs its start: `python3 -m tests.bench.sandbox` in a machine, as root.

Every variant starts the same guest with some properties more or less than the sandbox has. The variants take turns, so
that a machine that grows slower slows all of them. Prints the median time of a start, and the mean of the processor
time that the machine spent on it, each with the difference to the sandbox as it is. The latter depends little on load.
"""

import argparse
import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, cast
from unittest.mock import patch

from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.engine.runtime import Runtime, connect
from solo5_systemd.settings import files
from solo5_systemd.task.properties import Property
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.confinement import EMPTY, MS_REC, confinement
from solo5_systemd.unit.tender import LAUNCHER, LIBRARIES

Change = Callable[[Sequence[Property]], Sequence[Property]]


def more(*properties: Property) -> Change:
    return lambda ours: (*ours, *properties)


def without(*names: str) -> Change:
    return lambda ours: tuple(each for each in ours if each.name not in names)


def instead(*properties: Property) -> Change:
    """Properties in the place of those of the same name."""
    names = {each.name for each in properties}
    return lambda ours: (*(each for each in ours if each.name not in names), *properties)


def all_libraries(ours: Sequence[Property]) -> Sequence[Property]:
    """The directories of libraries, instead of those that the tender needs."""
    bound = next(each for each in ours if each.name == "BindReadOnlyPaths")
    wide = [(path, path, True, MS_REC) for path in LIBRARIES]
    return instead(replace(bound, value=[*wide, *cast(list[object], bound.value)[-3:]]))(ours)


def tmpfs_root(ours: Sequence[Property]) -> Sequence[Property]:
    """An empty file system as the root, and nothing that systemd would mount in its place."""
    rest = without("RootDirectory", "ProtectSystem", "MountAPIVFS", "NoExecPaths", "ExecPaths")(ours)
    return instead(Property("TemporaryFileSystem", "a(ss)", [("/", EMPTY)]))(rest)


NO_LAUNCHER = "without solo5-confine"

VARIANTS: Mapping[str, Change] = {
    "as it is": tuple,
    NO_LAUNCHER: tuple,
    "user solo5": instead(Property("User", "s", "solo5")),
    "all libraries": all_libraries,
    "TemporaryFileSystem=/": tmpfs_root,
    "without NoExecPaths=": without("NoExecPaths", "ExecPaths"),
    "without PrivateTmp=": without("PrivateTmpEx"),
    "PrivateTmp=yes": lambda ours: more(Property("PrivateTmp", "b", True))(without("PrivateTmpEx")(ours)),
    "ProtectControlGroups=yes": lambda ours: more(Property("ProtectControlGroups", "b", True))(
        without("ProtectControlGroupsEx")(ours)
    ),
    "SocketBindDeny=any": instead(Property("SocketBindDeny", "a(iiqq)", [(0, 0, 0, 0)])),
    "without IPAddressDeny=": without("IPAddressDeny"),
    "RestrictNetworkInterfaces=": instead(Property("RestrictNetworkInterfaces", "(bas)", (True, ["lo"]))),
    "RestrictFileSystems=": instead(Property("RestrictFileSystems", "(bas)", (True, ["tmpfs", "ext4", "proc"]))),
    "PrivatePIDs=yes": instead(Property("PrivatePIDs", "s", "yes")),
    "PrivateMounts=yes": instead(Property("PrivateMounts", "b", True)),
    "ProtectHome=no": instead(Property("ProtectHome", "s", "no")),
    "without SystemCallFilter=": without("SystemCallFilter"),
    "without PrivateUsers=": without("PrivateUsers"),
}


async def _price(image: str, rounds: int, names: Sequence[str]) -> None:
    change: Change = tuple

    def changed(*arguments: Any, **options: Any) -> tuple[Property, ...]:
        return tuple(change(confinement(*arguments, **options)))

    taken: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    refused: dict[str, str] = {}
    with patch("solo5_systemd.unit.translate.confinement", changed):
        async with connect(files.read_settings) as engine:
            for number in range(rounds):
                for name in (each for each in names if each not in refused):
                    change = VARIANTS[name]
                    launcher = "" if name == NO_LAUNCHER else LAUNCHER
                    try:
                        with patch("solo5_systemd.host.tenders.LAUNCHER", launcher):
                            taken[name].append(await _start(engine, image, TaskName(f"price-{number}")))
                    except Solo5Error as error:
                        refused[name] = str(error)
    times = {name: (median(each[0] for each in all_), fmean(each[1] for each in all_)) for name, all_ in taken.items()}
    base = times["as it is"]
    for name in names:
        if name in refused:
            print(f"{name:30} {refused[name]}")
            continue
        wall, spent = (value * 1000 for value in times[name])
        print(f"{name:30} {wall:7.1f} ms {wall - base[0] * 1000:+7.1f} {spent:7.1f} ms {spent - base[1] * 1000:+7.1f}")


def _spent() -> float:
    """Seconds of processor time of everything in this machine."""
    usage = dict(line.split() for line in Path("/sys/fs/cgroup/cpu.stat").read_text().splitlines())
    return int(usage["usage_usec"]) / 1e6


async def _start(engine: Runtime, image: str, name: TaskName) -> tuple[float, float]:
    begun, spent = time.perf_counter(), _spent()
    try:
        await engine.start(Workload(name=name, image=image))
        return time.perf_counter() - begun, _spent() - spent
    finally:
        await engine.discard(name)


def main() -> None:
    """Price the variants."""
    options = argparse.ArgumentParser(description="What each setting of the sandbox costs a start.")
    options.add_argument("--image", default="/srv/guests/net.spt", help="which guest (%(default)s)")
    options.add_argument("--rounds", default=40, type=int, help="starts of each variant (%(default)s)")
    options.add_argument("variants", nargs="*", choices=[*VARIANTS, []], help="which ones (all)")
    asked = options.parse_args()
    os.nice(-5)
    asyncio.run(_price(asked.image, asked.rounds, ["as it is", *asked.variants] if asked.variants else [*VARIANTS]))


if __name__ == "__main__":
    main()
