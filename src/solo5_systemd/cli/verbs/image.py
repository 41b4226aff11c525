"""`solo5ctl image`: shows the requirements of images and whether they can run here. Read-only, without root."""

import asyncio
from argparse import Namespace

from solo5_systemd.base.errors import ImageError, Solo5Error
from solo5_systemd.base.names import Target
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.render import fields
from solo5_systemd.host.tenders import TenderPath, groups_for
from solo5_systemd.image.manifest import ABI_VERSION, Manifest
from solo5_systemd.image.store import manifest_of
from solo5_systemd.settings.files import read_settings
from solo5_systemd.task.workload import MIB
from solo5_systemd.unit.guest_memory import HVT_MAXIMUM, RUNTIME_NEEDS_MORE, least_guest_memory, overhead
from solo5_systemd.unit.tender import Tender


def configure(parser: Parser) -> None:
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="path of an image")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    reports: list[tuple[dict[str, object], list[tuple[str, str]]]] = []
    status = 0
    for path in arguments.images:
        try:
            reports.append(_report(path, manifest_of(path)))
        except Solo5Error as error:  # the other images are reported all the same
            context.screen.error(error)
            status = max(status, error.exit_status)
    context.show(
        arguments,
        lambda: [document for document, _ in reports],
        lambda: "\n".join(fields(pairs) for _, pairs in reports),
    )
    return max(status, *(0 if document["runnable"] else ImageError.exit_status for document, _ in reports), 0)


def _report(path: str, manifest: Manifest) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Return the requirements of an image and why it cannot run here, as JSON and as fields."""
    tender, problems = asyncio.run(_found(manifest))
    least = least_guest_memory(manifest)
    for_tender = overhead(manifest, least)
    most = HVT_MAXIMUM + overhead(manifest, HVT_MAXIMUM) if manifest.target is Target.HVT else None
    document: dict[str, object] = {
        "image": path,
        "target": manifest.target.value,
        "abi_version": ABI_VERSION,
        "devices": [
            *({"name": nic, "kind": "NET_BASIC"} for nic in manifest.nics),
            *({"name": disk, "kind": "BLOCK_BASIC"} for disk in manifest.disks),
        ],
        "memory_min": (least + for_tender) * MIB,
        "runnable": not problems,
        "problems": problems,
        **({} if most is None else {"memory_max": most * MIB}),
        **({} if tender is None else {"tender": tender.path, "tender_version": tender.version}),
    }
    memory = f"{least + for_tender}M{' or more' if most is None else f' to {most}M'}"
    return document, [
        ("Image", path),
        ("Target", f"{manifest.target}, ABI version {ABI_VERSION}"),
        *(("NIC", nic) for nic in manifest.nics),
        *(("Disk", disk) for disk in manifest.disks),
        ("Memory", f"{memory}, {for_tender}M or more of it for the tender; {RUNTIME_NEEDS_MORE}"),
        ("Tender", "" if tender is None else f"{tender.path} (version {tender.version})"),
        ("Runnable", "no" if problems else "yes"),
        *(("Problem", problem) for problem in problems),
    ]


async def _found(manifest: Manifest) -> tuple[Tender | None, list[str]]:
    """Return the installed tender for an image, if there is one, and why the image cannot run here."""
    problems: list[str] = []
    tender = None
    try:
        tender = await TenderPath(read_settings().tender_paths).find(manifest.target)
    except Solo5Error as error:
        problems.append(str(error))
    try:
        groups_for(manifest.target, nics=bool(manifest.nics))
    except Solo5Error as error:  # the second check is made all the same, so that all problems are shown
        problems.append(str(error))
    return tender, problems
