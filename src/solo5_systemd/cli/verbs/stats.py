"""`solo5ctl stats`: shows resource usage of tasks. Unknown values are empty cells, and absent keys of JSON."""

import re
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from solo5_systemd.base.errors import InvalidRequestError, NoSuchTaskError
from solo5_systemd.base.names import TaskName, task_name
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import UNKNOWN, size, table
from solo5_systemd.cli.terminal import Screen
from solo5_systemd.task.quantities import DECIMAL

if TYPE_CHECKING:
    from solo5_systemd.cgroup.usage import Pressure
    from solo5_systemd.engine.queries import Queries
    from solo5_systemd.engine.task import Sample

    Samples = Mapping[TaskName, Sample]

FIRST_INTERVAL_S = 1.0
"""Upper limit of the first interval, so that `-i 60` shows a CPU percentage, which needs two samples, after 1 s."""

HEADER = ("NAME", "CPU %", "MEM / LIMIT", "NET I/O", "BLOCK I/O", "PIDS")
WIDE_HEADER = ("CPU TIME", "THROTTLED", "PEAK", "SWAP", "WAITING %")

SORTS: "Mapping[str, Callable[[Sample | None, Sample], float]]" = {
    "cpu": lambda before, now: _percent(before, now) or 0,
    "memory": lambda _, now: now.usage.memory.rss or 0,
    "net": lambda _, now: sum(_received_and_sent(now)),
    "block": lambda _, now: (now.usage.io.read_bytes or 0) + (now.usage.io.written_bytes or 0),
}
"""Sort keys of `--sort` besides `name`; all sort in descending order."""


def configure(parser: Parser) -> None:
    parser.add_argument("--no-stream", action="store_true", help="print one sample and exit")
    parser.add_argument(
        "-i", "--interval", metavar="SECONDS", type=interval, default=1.0, help="sampling interval (default: 1)"
    )
    parser.add_argument(
        "-s",
        "--sort",
        choices=("name", *SORTS),
        default="name",
        help="sort by this column; all but name in descending order",
    )
    parser.add_argument("-w", "--wide", action="store_true", help="show more columns")
    parser.add_argument(
        "names", metavar="NAME", nargs="*", type=task_name, help="name of a task (default: all that have not ended)"
    )
    parser.add_output_options(json=True)


def interval(text: str) -> float:
    if not re.fullmatch(DECIMAL, text, re.ASCII) or not 0.1 <= float(text) <= 86400:
        raise InvalidRequestError(f"--interval {text!r} is not an interval: expected 0.1 to 86400 seconds, such as 5.")
    return float(text)


def execute(arguments: Namespace, context: CommandContext) -> int:
    async def command(engine: "Queries") -> int:
        await _check(engine, arguments.names)
        detailed = context.root and arguments.json
        before = await _sample(engine, arguments.names)
        if not before and (arguments.names or arguments.no_stream):  # otherwise a stream waits for the first task
            _show({}, {}, arguments, context.screen)
            return 0
        pause = min(FIRST_INTERVAL_S, arguments.interval)
        while before or not arguments.names:  # a stream of named tasks ends with the last of them
            time.sleep(pause)  # noqa: ASYNC251 - nothing else runs meanwhile
            now = await _sample(engine, arguments.names, detailed=detailed)
            _show(before, now, arguments, context.screen)
            if arguments.no_stream:
                return 0
            before, pause = now, arguments.interval
        return 0

    return context.query(command)


async def _check(engine: "Queries", names: Sequence[TaskName]) -> None:
    """Raise NoSuchTaskError for an unknown name; a task that ends later is no error."""
    known = await engine.names() if names else ()
    for name in names:
        if name not in known:
            raise NoSuchTaskError(f"no task is named {name!r}.", "List them: solo5ctl ps --all")


async def _sample(engine: "Queries", names: Sequence[TaskName], *, detailed: bool = False) -> "Samples":
    samples = await engine.samples(drops=detailed, disks=detailed)
    return {name: samples[name] for name in dict.fromkeys(names) if name in samples} if names else samples


def _show(before: "Samples", now: "Samples", arguments: Namespace, screen: Screen) -> None:
    names = list(now)
    if arguments.sort != "name":  # in the order of their names, or as they are given
        names.sort(key=lambda name: SORTS[arguments.sort](before.get(name), now[name]), reverse=True)
    if arguments.json:
        screen.json([usage_json(name, before.get(name), now[name]) for name in names])
        return
    header = (*HEADER, *WIDE_HEADER) if arguments.wide else HEADER
    text = table(header, [row(name, before.get(name), now[name], wide=arguments.wide) for name in names])
    if arguments.no_stream:
        screen.write(text)
    else:
        screen.redraw(text)


def row(name: str, before: "Sample | None", now: "Sample", *, wide: bool = False) -> tuple[str, ...]:
    """Return a row, with the columns of docker stats; without a sample before, it has no CPU percentage."""
    usage, percent = now.usage, _percent(before, now)
    narrow = (
        name,
        "" if percent is None else f"{percent:.1f}%",
        _pair(usage.memory.rss, usage.memory.limit),
        _pair(*_received_and_sent(now)) if now.nics else "",
        _pair(usage.io.read_bytes, usage.io.written_bytes),
        "" if usage.processes is None else str(usage.processes),
    )
    if not wide:
        return narrow
    return (
        *narrow,
        _seconds(usage.cpu.total),
        _seconds(usage.cpu.throttled),
        _size(usage.memory.peak),
        _size(usage.memory.swap),
        _waiting(usage.pressure or {}),
    )


def usage_json(name: str, before: "Sample | None", now: "Sample") -> dict[str, object]:
    """Return a sample as a JSON object, in bytes and microseconds, with the kernel's names."""
    usage, percent = now.usage, _percent(before, now)
    disks = usage.disks or {}
    found: dict[str, object] = _known(
        {
            "name": name,
            "cpu_percent": None if percent is None else round(percent, 2),
            "cpu": usage.cpu._asdict(),
            "memory": usage.memory._asdict(),
            "io": usage.io._asdict(),
            "disks": [{"device": key, "disks": [*now.disks.get(key, ())], **io._asdict()} for key, io in disks.items()],
            "nics": [
                {
                    "nic": nic,
                    "received": traffic.received._asdict(),
                    "sent": traffic.sent._asdict(),
                    "drops": dict(now.drops.get(nic, {})),
                }
                for nic, traffic in now.nics.items()
            ],
            "processes": usage.processes,
            "pressure": usage.pressure or {},
        }
    )
    return found


def _known(value: Any) -> Any:
    """Return a JSON value without the keys whose value is unknown or empty."""
    if isinstance(value, list):
        return [*map(_known, value)]
    if not isinstance(value, dict):
        return value
    known = {key: _known(each) for key, each in value.items()}
    return {key: each for key, each in known.items() if each is not None and each not in ({}, [])}


def _percent(before: "Sample | None", now: "Sample") -> float | None:
    from solo5_systemd.cgroup.usage import cpu_percent

    return cpu_percent(before.usage, now.usage) if before else None


def _received_and_sent(now: "Sample") -> tuple[int, int]:
    return sum(nic.received.bytes for nic in now.nics.values()), sum(nic.sent.bytes for nic in now.nics.values())


def _waiting(pressure: "Mapping[str, Pressure]") -> str:
    """Return PSI `some avg10` of cpu, memory and io in percent."""
    stalls = [pressure.get(each, {}).get("some", {}).get("avg10") for each in ("cpu", "memory", "io")]
    shown = [UNKNOWN if stall is None else f"{stall:.0f}" for stall in stalls]
    return " / ".join(shown) if shown != [UNKNOWN] * 3 else ""


def _pair(first: int | None, second: int | None) -> str:
    return "" if first is second is None else f"{_size(first) or UNKNOWN} / {_size(second) or UNKNOWN}"


def _seconds(microseconds: int | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1e6:.2f}s"


def _size(count: int | None) -> str:
    return "" if count is None else size(count)
