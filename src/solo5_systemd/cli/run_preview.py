"""`solo5ctl run --dry-run`: the plan, as text or JSON."""

import shlex
from typing import TYPE_CHECKING

from solo5_systemd.cli.session import Session
from solo5_systemd.cli.task_output import lease_text, port, reservation_json
from solo5_systemd.cli.unit_file_output import directive, plain_value
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.engine.start import Plan


def preview(workload: Workload, session: Session, *, json: bool) -> int:
    """Show what a start would do.

    Raises:
        Solo5Error: it could not start.
    """

    async def story(engine: "Runtime") -> int:
        await session.warn_unenforced(engine, workload)
        plan = await engine.preview(workload)
        if json:
            session.screen.json(_json(plan))
        else:
            session.screen.write(_text(plan))
        return 0

    return session.engine(story)


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
    """Properties stand under the names and with the values that they have on D-Bus."""
    return {
        "unit": plan.unit.name,
        "properties": {each.name: plain_value(each.value) for each in plan.unit.properties},
        "argv": list(plan.argv),
        "image": {"path": plan.image.path, "sha256": plan.image.sha256},
        "tender": plan.tender.path,
        "nft": plan.nft,
        **reservation_json(plan.reservation),
    }
