"""The console of a guest that counts or writes, `count 1` and so on: what is wrong with a copy of it. Pure."""

import re
from collections.abc import Iterator, Sequence


def numbers(log: str) -> list[int]:
    """The numbers of all whole lines, as they came."""
    return [int(number) for number in re.findall(r"(?m)^count (\d+)\n", log)]


def faults(log: str) -> Iterator[str]:
    """Lines that are missing, repeated or out of order; a sentence for each place."""
    found = numbers(log)
    for before, number in zip([0, *found], found, strict=False):
        if number > before + 1:
            yield f"after line {before} comes {number}: {number - before - 1} lost"
        elif number <= before:
            yield f"after line {before} comes {number} again"


def broken(log: str) -> list[str]:
    """Lines that are no lines of that guest's: torn, or two in one."""
    disks = r"storage: capacity .*|sector 0: ''|(data|scratch): newest \d+|config: '.*'"
    known = rf"count \d+|[a-z]+: (mac|ipv4) .*|serving|{disks}|argument.*|Solo5: .*|"
    return [line for line in log.splitlines() if not re.fullmatch(known, line)]


def last_run(entries: Sequence[tuple[str, str]], invocation: str) -> str:
    """The console of a unit's run with this invocation, the last one, of the journal of all runs under its name.

    A start that loses the bus is undone and repeated, so a unit can have several runs. The last lines of a run may
    have no invocation (journald looks it up by a process that has ended), the first ones always have it.

    Args:
        entries: Invocation ID, or an empty string, and text of each line, in the journal's order.
    """
    mine = [number for number, (of, _) in enumerate(entries) if of == invocation]
    others = [number + 1 for number, (of, _) in enumerate(entries) if of not in ("", invocation)]
    begin = min(mine, default=max(others, default=0))
    return "".join(f"{line}\n" for _, line in entries[begin:])
