"""`solo5ctl run --dry-run`: prints the plan as text or JSON."""

import shlex
from typing import TYPE_CHECKING

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.task_output import lease_text, port, reservation_json
from solo5_systemd.unit.properties import directive
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.engine.start import Plan


def print_plan(workload: Workload, context: CommandContext, *, json: bool) -> int:
    """Print the plan of a start.

    Raises:
        Solo5Error: the preflight failed.
    """

    async def command(engine: "Runtime") -> int:
        await context.warn_unenforced(engine, workload)
        plan = await engine.preview(workload)
        if json:
            context.screen.json(_json(plan))
        else:
            context.screen.write(_text(plan))
        return 0

    return context.run(command)


def plain_value(value: object) -> object:
    """Return a D-Bus value that JSON can represent: bytes are decoded to text."""
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    return value


def _text(plan: "Plan") -> str:
    sections = [
        _section(plan.unit.name, [directive(each) for each in plan.unit.properties]),
        _section("command line", [shlex.join(plan.argv)]),
    ]
    sections.append(_section("leases", [f"{lease.nic} {lease_text(lease)}" for lease in plan.reservation.leases]))
    sections.append(_section("ports", [f"{port(each)} ({each.nic})" for each in plan.reservation.ports]))
    sections.append(_section("nftables", plan.nft.splitlines()))
    return "\n".join(section for section in sections if section)


def _section(title: str, lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in (f"# {title}", *lines)) if lines else ""


def _json(plan: "Plan") -> dict[str, object]:
    """Return the plan as a JSON object; properties have their D-Bus names and values."""
    return {
        "unit": plan.unit.name,
        "properties": {each.name: plain_value(each.value) for each in plan.unit.properties},
        "argv": list(plan.argv),
        "image": {"path": plan.image.path, "sha256": plan.image.sha256},
        "tender": plan.tender.path,
        "nft": plan.nft,
        **reservation_json(plan.reservation),
    }
