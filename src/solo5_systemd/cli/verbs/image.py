"""`solo5ctl image`: what an image needs, and whether it can run here. It only reads, and needs no root."""

import asyncio
from argparse import Namespace
from dataclasses import dataclass

from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import fields
from solo5_systemd.cli.session import Session
from solo5_systemd.errors import ImageError, Solo5Error
from solo5_systemd.host.devices import groups_for
from solo5_systemd.host.tenders import TenderPath
from solo5_systemd.image.manifest import DeviceKind, ImageFacts, Target
from solo5_systemd.image.store import read_facts
from solo5_systemd.settings_files import read_settings
from solo5_systemd.unit.tender import HVT_MAXIMUM, Tender, least_guest_memory, overhead
from solo5_systemd.workload import MIB


@dataclass(frozen=True, kw_only=True)
class Report:
    """An image, and this machine's answer to it; `problems` empty: it can run here."""

    facts: ImageFacts
    tender: Tender | None
    problems: tuple[Solo5Error, ...]

    @property
    def least_memory(self) -> int:
        """The smallest `--memory`, in bytes."""
        least = least_guest_memory(self.facts)
        return (least + overhead(self.facts.manifest, least)) * MIB

    @property
    def most_memory(self) -> int | None:
        """The largest `--memory`, in bytes; None: the machine's own."""
        manifest = self.facts.manifest
        most = HVT_MAXIMUM + overhead(manifest, HVT_MAXIMUM)
        return most * MIB if manifest.target is Target.HVT else None


def configure(parser: Parser) -> None:
    parser.add_argument("image", metavar="IMAGE", help="the unikernel: a file")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, session: Session) -> int:
    report = asyncio.run(_look(arguments.image))
    if arguments.json:
        session.screen.json(_json(report))
    else:
        session.screen.write(fields(_fields(report)))
    return ImageError.exit_status if report.problems else 0


async def _look(path: str) -> Report:
    facts = read_facts(path)
    manifest = facts.manifest
    problems: list[Solo5Error] = []
    tender = None
    try:
        tender = await TenderPath(read_settings().tender_paths).find(manifest.target, manifest.abi_version)
    except Solo5Error as error:
        problems.append(error)
    try:
        groups_for(manifest.target, nics=bool(manifest.names(DeviceKind.NET_BASIC)))
    except Solo5Error as error:
        problems.append(error)
    return Report(facts=facts, tender=tender, problems=tuple(problems))


def _fields(report: Report) -> list[tuple[str, str]]:
    manifest = report.facts.manifest
    most = f" to {_mib(report.most_memory)}" if report.most_memory else " or more"
    least = f"{overhead(manifest, least_guest_memory(report.facts))}M"
    tender = f"{report.tender.path} (version {report.tender.version})" if report.tender else ""
    return [
        ("Target", f"{manifest.target}, ABI version {manifest.abi_version}"),
        *((_KINDS[device.kind], device.name) for device in manifest.devices),
        ("Memory", f"{_mib(report.least_memory)}{most}, {least} or more of it the tender's"),
        ("Tender", tender),
        ("Runs here", "no" if report.problems else "yes"),
        *(("Because", str(problem)) for problem in report.problems),
    ]


def _mib(count: int) -> str:
    return f"{count // MIB}M"


_KINDS = {DeviceKind.NET_BASIC: "NIC", DeviceKind.BLOCK_BASIC: "Disk"}


def _json(report: Report) -> dict[str, object]:
    manifest = report.facts.manifest
    document: dict[str, object] = {
        "target": manifest.target.value,
        "abi_version": manifest.abi_version,
        "devices": [{"name": device.name, "kind": device.kind.value} for device in manifest.devices],
        "memory_min": report.least_memory,
        "runnable": not report.problems,
        "problems": [str(problem) for problem in report.problems],
    }
    if report.most_memory is not None:
        document["memory_max"] = report.most_memory
    if report.tender is not None:
        document["tender"] = report.tender.path
        document["tender_version"] = report.tender.version
    return document
