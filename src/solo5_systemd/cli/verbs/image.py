"""`solo5ctl image`: shows the requirements of images and whether they can run here. Read-only, without root."""

import asyncio
from argparse import Namespace
from dataclasses import dataclass

from solo5_systemd.base.errors import ImageError, Solo5Error
from solo5_systemd.base.names import Target
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import fields
from solo5_systemd.host.tenders import TenderPath, groups_for
from solo5_systemd.image.manifest import DeviceKind, ImageFacts
from solo5_systemd.image.store import read_facts
from solo5_systemd.settings.files import read_settings
from solo5_systemd.task.workload import MIB
from solo5_systemd.unit.guest_memory import HVT_MAXIMUM, RUNTIME_NEEDS_MORE, least_guest_memory, overhead
from solo5_systemd.unit.tender import Tender


@dataclass(frozen=True, kw_only=True)
class ImageReport:
    """An image's requirements and the result of the check.

    Attributes:
        tender: the installed tender for it; None: there is none.
        problems: why it cannot run here; empty: it can.
    """

    path: str
    facts: ImageFacts
    tender: Tender | None
    problems: tuple[Solo5Error, ...]

    @property
    def min_memory(self) -> int:
        """The lowest value of `--memory`, in bytes."""
        least = least_guest_memory(self.facts)
        return (least + overhead(self.facts.manifest, least)) * MIB

    @property
    def most_memory(self) -> int | None:
        """The highest value of `--memory`, in bytes; None: no limit of the tender."""
        manifest = self.facts.manifest
        most = HVT_MAXIMUM + overhead(manifest, HVT_MAXIMUM)
        return most * MIB if manifest.target is Target.HVT else None


def configure(parser: Parser) -> None:
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="path of an image")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    reports: list[ImageReport] = []
    status = 0
    for path in arguments.images:
        try:
            reports.append(asyncio.run(_check_image(path)))
        except Solo5Error as error:
            context.screen.error(error)
            status = max(status, error.exit_status)
    if arguments.json:
        context.screen.json([_json(report) for report in reports])
    else:
        context.screen.write("\n".join(fields(_fields(report)) for report in reports))
    return max(status, *(ImageError.exit_status if report.problems else 0 for report in reports), 0)


async def _check_image(path: str) -> ImageReport:
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
    return ImageReport(path=path, facts=facts, tender=tender, problems=tuple(problems))


def _fields(report: ImageReport) -> list[tuple[str, str]]:
    manifest = report.facts.manifest
    most = f" to {_mib(report.most_memory)}" if report.most_memory else " or more"
    least = f"{overhead(manifest, least_guest_memory(report.facts))}M"
    tender = f"{report.tender.path} (version {report.tender.version})" if report.tender else ""
    tender_memory = f"{least} or more of it for the tender; {RUNTIME_NEEDS_MORE}"
    return [
        ("Image", report.path),
        ("Target", f"{manifest.target}, ABI version {manifest.abi_version}"),
        *((_KINDS[device.kind], device.name) for device in manifest.devices),
        ("Memory", f"{_mib(report.min_memory)}{most}, {tender_memory}"),
        ("Tender", tender),
        ("Runnable", "no" if report.problems else "yes"),
        *(("Problem", str(problem)) for problem in report.problems),
    ]


def _mib(count: int) -> str:
    return f"{count // MIB}M"


_KINDS = {DeviceKind.NET_BASIC: "NIC", DeviceKind.BLOCK_BASIC: "Disk"}


def _json(report: ImageReport) -> dict[str, object]:
    manifest = report.facts.manifest
    document: dict[str, object] = {
        "image": report.path,
        "target": manifest.target.value,
        "abi_version": manifest.abi_version,
        "devices": [{"name": device.name, "kind": device.kind.value} for device in manifest.devices],
        "memory_min": report.min_memory,
        "runnable": not report.problems,
        "problems": [str(problem) for problem in report.problems],
    }
    if report.most_memory is not None:
        document["memory_max"] = report.most_memory
    if report.tender is not None:
        document["tender"] = report.tender.path
        document["tender_version"] = report.tender.version
    return document
