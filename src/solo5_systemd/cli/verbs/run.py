"""`solo5ctl run`: builds a workload from the options and starts it."""

import os
from argparse import REMAINDER, Namespace
from typing import TYPE_CHECKING

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import UnitKind, own_task_name
from solo5_systemd.unit.log_fields import labels

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.storage.model import DiskRequest
    from solo5_systemd.workload import Workload

# A workload and its parts are imported where one is made, for startup time: `--help` takes none.


EPILOG = """\
Without --net, each NIC of the image is connected to the network 'default'. ARGs may contain placeholders such as
{name}, {net.NIC.ipv4} and {dns}; {mirage} stands for MirageOS' --ipv4 and --ipv4-gateway, and on a network with IPv6
also for --ipv6 and --ipv6-gateway; {{ and }} are literal braces. See solo5ctl(1).

  solo5ctl run hello.spt
  solo5ctl run -d --name web -m 64M -p 8080:80 web.hvt {mirage}
  solo5ctl run --dns 9.9.9.9 client.hvt {mirage} --dns-servers={dns.udp}
"""


def configure(parser: Parser) -> None:
    """Add the options."""
    parser.usage = "solo5ctl run [options] IMAGE [ARG...]"
    parser.epilog = EPILOG
    _add_unit_options(parser)
    _add_workload_options(parser)
    parser.add_output_options(json=True)
    parser.add_argument("image", metavar="IMAGE", help="path of the image")
    rest = parser.add_argument("arguments", metavar="ARG", nargs=REMAINDER, help="arguments of the guest")
    rest.required = False  # else argparse's error for a missing IMAGE lists ARG as required too


def _add_unit_options(parser: Parser) -> None:
    parser.add_argument("--name", type=own_task_name, help="name of the task (default: derived from IMAGE)")
    parser.add_argument("-d", "--detach", action="store_true", help="run in the background and print the task's name")
    parser.add_argument("--rm", action="store_true", help="remove the task when it has ended")
    parser.add_argument("--replace", action="store_true", help="remove an existing task of this name first")
    parser.add_argument("--scope", action="store_true", help="run the tender as a child of the caller, in a scope")
    parser.add_argument("--dry-run", action="store_true", help="print the plan without starting the task")
    parser.add_argument(
        "--declare", metavar="NAME", type=typed.declaration_name,
        help="write the task to /etc/solo5/NAME.unikernel instead of starting it; with --dry-run: print it",
    )  # fmt: skip
    parser.add_argument("--tender", choices=("hvt", "spt"), help="require this tender")
    parser.add_argument(
        "--property", metavar="KEY=VALUE", type=typed.unit_property, action="append", default=[],
        help="set a property of the unit, see systemd.resource-control(5)",
    )  # fmt: skip
    parser.add_argument(
        "--label", metavar="KEY=VALUE", type=typed.journal_label, action="append", default=[],
        help="add a label: a journal field on each console line",
    )  # fmt: skip
    parser.add_argument(
        "--log-field", metavar="KEY=VALUE", type=typed.log_field, action="append", default=[],
        help="add a journal field, also one that Nomad or journald defines",
    )  # fmt: skip


def _add_workload_options(parser: Parser) -> None:
    parser.add_argument(
        "-m", "--memory", metavar="SIZE", type=typed.memory_size, default="128M",
        help="memory limit of guest and tender together (default: 128M)",
    )  # fmt: skip
    parser.add_argument("--cpus", metavar="N", type=typed.cpus, help="CPU quota in processors, such as 1.5")
    parser.add_argument(
        "--cpu-weight", metavar="N", type=typed.cpu_weight, help="CPU weight, 1 to 10000 (default: 100)"
    )
    parser.add_argument(
        "--net", "--network", metavar="NIC=NETWORK[,ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS][,route=RANGE]",
        type=typed.nic, action="append", default=[], help="connect a NIC of the image to a network",
    )  # fmt: skip
    parser.add_argument(
        "--network-namespace", metavar="PATH", type=typed.namespace_path,
        help="run in this network namespace, such as /run/netns/NAME, beside the programs that are in it",
    )  # fmt: skip
    parser.add_argument(
        "-p", "--publish", metavar="[NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp]", type=typed.publish, action="extend",
        default=[], help="publish a port of the guest on the host, or a range of ports: 8000-8010:8000-8010",
    )  # fmt: skip
    parser.add_argument(
        "--egress", metavar="ADDRESS[/PREFIX][:PORT[-PORT]][/tcp|/udp|/icmp]", type=typed.egress_entry, action="append",
        default=[], help="permit connections of the guest to this destination, and to no others; 'none': to none",
    )  # fmt: skip
    parser.add_argument(
        "--rate", metavar="KEY=N", type=typed.rate_entry, action="append", default=[],
        help="limit each NIC, per second: sent=10M or received=10M (bytes), sent-packets=N, received-packets=N",
    )  # fmt: skip
    parser.add_argument(
        "--verbatim", metavar="ARG", action="append", default=[],
        help="argument of the guest after ARGs, in which braces are no placeholders: for data of others",
    )  # fmt: skip
    parser.add_argument(
        "--dns", metavar="ADDRESS", type=typed.dns_server, action="append", default=[],
        help="name server for {dns} in ARGs (default: the network's, or else the host's)",
    )  # fmt: skip
    parser.add_argument(
        "--dns-search", metavar="DOMAIN", type=typed.dns_search, action="append", default=[],
        help="search domain for {search} in ARGs (default: as for --dns)",
    )  # fmt: skip
    parser.add_argument(
        "--hostname", metavar="NAME", type=typed.guest_hostname,
        help="host name for {hostname} in ARGs (default: the task's name)",
    )  # fmt: skip
    parser.add_argument(
        "--add-host", metavar="NAME:ADDRESS", type=typed.extra_host, action="append", default=[],
        help="name of a machine, for {hosts} in ARGs; ADDRESS: also host-gateway, the guest's gateway",
    )  # fmt: skip
    parser.add_argument(
        "--block", metavar="NAME=FILE|disk:DISK|files:PATH,...|credential:NAME[,OPTION...]", type=typed.disk,
        action="append", default=[],
        help="connect a disk of the image to a file, a block device, a named disk, or an archive of files in memory; "
        "OPTION: sector-size=N; of files, devices and named disks: ephemeral, ro, and limits per second: read_bps=10M, "
        "write_bps=10M, read_iops=N, write_iops=N; of a named disk: size=SIZE creates it; of an archive: strip, and "
        "format=tar or format=raw",
    )  # fmt: skip


def execute(arguments: Namespace, context: CommandContext) -> int:
    """Run `solo5ctl run` and return the exit status."""
    workload = _workload(arguments)
    _check_exclusive_options(arguments)
    _check_placeholders(arguments)
    if arguments.declare:
        from solo5_systemd.cli.declare import declare

        return declare(workload, context, replace=arguments.replace, dry_run=arguments.dry_run)
    from solo5_systemd.cli import run_modes  # imported here for startup time: it imports asyncio

    if arguments.dry_run:
        return run_modes.print_plan(workload, context, json=arguments.json)
    if arguments.scope:
        run_modes.exec_in_scope(workload, context)
    return context.run(lambda engine: _start(engine, workload, arguments, context))


def _check_exclusive_options(arguments: Namespace) -> None:
    """Check for mutually exclusive options.

    Raises:
        InvalidRequestError: two such options were given.
    """
    if arguments.detach and arguments.scope:
        raise InvalidRequestError("--detach and --scope are mutually exclusive: a scope ends with its caller.")
    if arguments.rm and (arguments.detach or arguments.scope):
        other = "--detach" if arguments.detach else "--scope"
        raise InvalidRequestError(
            f"--rm and {other} are mutually exclusive: no solo5ctl process waits for the end of the task.",
            "Remove the task later: solo5ctl rm NAME",
        )
    _check_declare(arguments)
    if arguments.json and not (arguments.dry_run or arguments.detach):
        raise InvalidRequestError("--json requires --dry-run or --detach: in the foreground, output is the console.")


def _check_declare(arguments: Namespace) -> None:
    given = (("--name", arguments.name), ("--detach", arguments.detach), ("--rm", arguments.rm))
    also = (("--scope", arguments.scope), ("--json", arguments.json))
    if arguments.declare and (other := next((option for option, value in (*given, *also) if value), None)):
        raise InvalidRequestError(
            f"--declare and {other} are mutually exclusive: systemd starts a declared task from its file.",
            "Its name is that of the task: solo5ctl run --declare NAME IMAGE",
        )


def _check_placeholders(arguments: Namespace) -> None:
    """Check that an ARG has what an option sets: a guest gets it in no other way than that or DHCP.

    Raises:
        InvalidRequestError: an option has no effect.
    """
    from solo5_systemd.options.networks import no_effect, without_placeholder

    given = {
        "--dns": arguments.dns,
        "--dns-search": arguments.dns_search,
        "--hostname": arguments.hostname,
        "--add-host": arguments.add_host,
    }
    lacking = without_placeholder([option for option, value in given.items() if value], arguments.arguments)
    for missing in lacking:
        if not (missing.by_dhcp and _by_dhcp(arguments)):
            raise no_effect(missing.option, missing)


def _by_dhcp(arguments: Namespace) -> bool:
    """Return whether a network of the task has a DHCP server; a NIC that is not mentioned joins the default one."""
    from solo5_systemd.settings.files import read_settings
    from solo5_systemd.settings.model import DEFAULT_NETWORK

    names = {nic.network for nic in arguments.net} or {DEFAULT_NETWORK}
    return any(network.policy.dhcp for network in read_settings().networks if network.name in names)


def _absolute(disk: "DiskRequest") -> "DiskRequest":
    """Return a disk with absolute paths: lexical, since Path.resolve() would follow symbolic links."""
    from dataclasses import replace

    if disk.archive is None:
        return replace(disk, path=os.path.abspath(disk.path))  # noqa: PTH100
    members = tuple(replace(each, path=os.path.abspath(each.path)) for each in disk.archive.members)  # noqa: PTH100
    return replace(disk, archive=replace(disk.archive, members=members))


def _workload(arguments: Namespace) -> "Workload":
    import secrets

    from solo5_systemd.image.manifest import Target
    from solo5_systemd.options.assignments import unique
    from solo5_systemd.options.networks import host_endpoint, limits
    from solo5_systemd.settings.hosts import hosts
    from solo5_systemd.settings.resolver import resolver
    from solo5_systemd.unit.placeholders import verbatim
    from solo5_systemd.workload import Workload

    image = os.path.abspath(arguments.image)  # noqa: PTH100 - lexical: Path.resolve() would follow symlinks
    disks = unique(arguments.block, lambda disk: disk.disk, "disk")
    return Workload(
        name=arguments.declare or arguments.name or typed.derived_name(image, secrets.token_hex(2)),
        image=image,
        arguments=(*arguments.arguments, *map(verbatim, arguments.verbatim)),
        memory=arguments.memory,
        cpus=arguments.cpus,
        cpu_weight=arguments.cpu_weight,
        nics=unique(arguments.net, lambda nic: nic.nic, "NIC"),
        limits=limits(arguments.egress, arguments.rate),
        resolver=resolver(arguments.dns, arguments.dns_search),
        hostname=arguments.hostname or "",
        hosts=hosts(arguments.add_host),
        namespace=arguments.network_namespace or "",
        publish=unique(arguments.publish, host_endpoint, "published port"),
        disks=tuple(map(_absolute, disks)),
        tender=Target(arguments.tender) if arguments.tender else None,
        kind=UnitKind.SCOPE if arguments.scope else UnitKind.SERVICE,
        properties=tuple(arguments.property),
        log_fields=(*labels(arguments.label), *arguments.log_field),
    )


async def _start(engine: "Runtime", workload: "Workload", arguments: Namespace, context: CommandContext) -> int:
    from solo5_systemd.cli import run_modes

    await context.warn_unenforced(engine, workload)

    if arguments.replace:
        await run_modes.remove_existing(engine, workload.name)
    if not arguments.detach:
        return await run_modes.run_attached(engine, workload, context.screen, remove=arguments.rm)
    started = await engine.start(workload)
    if arguments.json:
        from solo5_systemd.cli.task_output import task_json

        context.screen.json(task_json(await engine.task(started.name)))
    else:
        context.screen.write(f"{started.name}\n")
    return 0
