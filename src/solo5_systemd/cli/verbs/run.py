"""`solo5ctl run`: what was typed, as a workload, and which way to start it."""

import os
import secrets
from argparse import REMAINDER, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from solo5_systemd.cli import arguments as typed
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.session import Session
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.image.manifest import Target
from solo5_systemd.names import task_name
from solo5_systemd.unit.log_fields import labels
from solo5_systemd.workload import DEFAULT_MEMORY, UnitKind, Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


EPILOG = """\
Without --net, each NIC of the image joins the network 'default'. An ARG may hold {name}, {net.NIC.ipv4} and
others that are filled from what the task is given; double a brace to pass it on. See solo5ctl(1).

  solo5ctl run hello.spt
  solo5ctl run -d --name web -m 64M -p 8080:80 web.hvt --ipv4={net.service.ipv4_cidr}
"""


def configure(parser: Parser) -> None:
    parser.usage = "solo5ctl run [options] IMAGE [ARG...]"
    parser.epilog = EPILOG
    _add_how(parser)
    _add_what(parser)
    parser.add_output_options(json=True)
    parser.add_argument("image", metavar="IMAGE", help="the unikernel: a file")
    rest = parser.add_argument("arguments", metavar="ARG", nargs=REMAINDER, help="arguments of the guest")
    rest.required = False  # argparse asks for one, in the words of its error at least


def _add_how(parser: Parser) -> None:
    parser.add_argument("--name", type=task_name, help="the task's name; derived from IMAGE where left out")
    parser.add_argument("-d", "--detach", action="store_true", help="print the task's name and let it run")
    parser.add_argument("--rm", action="store_true", help="forget the task when it has ended")
    parser.add_argument("--replace", action="store_true", help="remove a task of this name first")
    parser.add_argument("--scope", action="store_true", help="run the tender as a child of the caller")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument("--tender", choices=[target.value for target in Target], help="insist on this tender")
    parser.add_argument(
        "--property", metavar="KEY=VALUE", type=typed.unit_property, action="append", default=[],
        help="set a property of the unit, as in systemd.resource-control(5)",
    )  # fmt: skip
    parser.add_argument(
        "--label", metavar="KEY=VALUE", type=typed.journal_label, action="append", default=[],
        help="a label of the task: a journal field on each line of the console",
    )  # fmt: skip
    parser.add_argument(
        "--log-field", metavar="KEY=VALUE", type=typed.log_field, action="append", default=[],
        help="the same, also with a field that Nomad or the journal uses",
    )  # fmt: skip


def _add_what(parser: Parser) -> None:
    parser.add_argument(
        "-m", "--memory", metavar="SIZE", type=typed.memory_size, default=DEFAULT_MEMORY,
        help="memory of guest and tender together (default: 128M)",
    )  # fmt: skip
    parser.add_argument("--cpus", metavar="N", type=typed.cpus, help="at most this many processors, such as 1.5")
    parser.add_argument("--cpu-weight", metavar="N", type=typed.cpu_weight, help="share of contended processors")
    parser.add_argument(
        "--net", metavar="NIC=NETWORK[,ip=ADDRESS][,mac=ADDRESS]", type=typed.nic, action="append", default=[],
        help="connect a NIC of the image",
    )  # fmt: skip
    parser.add_argument(
        "-p", "--publish", metavar="[NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp]", type=typed.publish, action="append",
        default=[], help="pass a port of the host on to the guest",
    )  # fmt: skip
    parser.add_argument(
        "--block", metavar="NAME=FILE[,sector-size=N]", type=typed.disk, action="append", default=[],
        help="put a file or block device behind a disk of the image",
    )  # fmt: skip


def execute(arguments: Namespace, session: Session) -> int:
    workload = _workload(arguments)
    _agree(arguments)
    if arguments.dry_run:
        from solo5_systemd.cli.run_preview import preview

        return preview(workload, session, json=arguments.json)
    if arguments.scope:
        from solo5_systemd.cli.run_scope import become

        become(workload, session)
    return session.engine(lambda engine: _start(engine, workload, arguments, session))


def _agree(arguments: Namespace) -> None:
    """Options that say opposite things.

    Raises:
        InvalidRequestError: two such were given.
    """
    if arguments.detach and arguments.scope:
        raise InvalidRequestError("--detach and --scope exclude each other: a scope ends with its caller.")
    if arguments.rm and (arguments.detach or arguments.scope):
        other = "--detach" if arguments.detach else "--scope"
        raise InvalidRequestError(
            f"--rm and {other} exclude each other: nobody of ours stays to see the end.",
            "Forget the task later: solo5ctl rm NAME",
        )
    if arguments.json and not (arguments.dry_run or arguments.detach):
        raise InvalidRequestError("--json prints a plan or a task: expected --dry-run or --detach beside it.")


def _workload(arguments: Namespace) -> Workload:
    image = os.path.abspath(arguments.image)  # noqa: PTH100 - Path would read the working directory's links
    disks = typed.unlike(arguments.block, lambda disk: disk.disk, "disk")
    return Workload(
        name=arguments.name or typed.derived_name(image, secrets.token_hex(2)),
        image=image,
        arguments=tuple(arguments.arguments),
        memory=arguments.memory,
        cpus=arguments.cpus,
        cpu_weight=arguments.cpu_weight,
        nics=typed.unlike(arguments.net, lambda nic: nic.nic, "NIC"),
        publish=typed.unlike(arguments.publish, typed.listening, "published port"),
        disks=tuple(replace(disk, path=os.path.abspath(disk.path)) for disk in disks),  # noqa: PTH100
        tender=Target(arguments.tender) if arguments.tender else None,
        kind=UnitKind.SCOPE if arguments.scope else UnitKind.SERVICE,
        properties=tuple(arguments.property),
        log_fields=(*labels(arguments.label), *arguments.log_field),
    )


async def _start(engine: "Runtime", workload: Workload, arguments: Namespace, session: Session) -> int:
    from solo5_systemd.cli import run_foreground  # asyncio

    await session.warn_unenforced(engine, workload)

    if arguments.replace:
        await run_foreground.make_room(engine, workload.name)
    if not arguments.detach:
        return await run_foreground.attend(engine, workload, session.screen, remove=arguments.rm)
    started = await engine.start(workload)
    if arguments.json:
        from solo5_systemd.cli.task_output import task_json

        session.screen.json(task_json(await engine.task(started.name)))
    else:
        session.screen.write(f"{started.name}\n")
    return 0
