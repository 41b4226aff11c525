"""`solo5ctl run`: builds a workload from the options and starts it."""

import os
import re
from argparse import REMAINDER, Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError, host_errors
from solo5_systemd.base.names import TaskName, UnitKind, own_task_name, task_name
from solo5_systemd.cli.context import CommandContext, remove_existing
from solo5_systemd.cli.parser import Parser
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.settings.files import read_settings
from solo5_systemd.task.quantities import value_of
from solo5_systemd.task.setting_values import Parse, Values, workload
from solo5_systemd.task.settings import SETTINGS
from solo5_systemd.task.workload import Workload

T = TypeVar("T")

EPILOG = """\
Without --net, each NIC of the image is connected to the network 'default'. ARGs may contain placeholders such as
{name}, {net.NIC.ipv4} and {dns}; {mirage} stands for MirageOS' --ipv4 and --ipv4-gateway, and on a network with IPv6
also for --ipv6 and --ipv6-gateway; {{ and }} are literal braces. See solo5ctl(1).

  solo5ctl run hello.spt
  solo5ctl run -d --name web -m 64M -p 8080:80 web.hvt {mirage}
  solo5ctl run --dns 9.9.9.9 client.hvt {mirage} --dns-servers={dns.udp}
"""


def configure(parser: Parser) -> None:
    parser.usage = "solo5ctl run [options] IMAGE [ARG...]"
    parser.epilog = EPILOG
    parser.add_argument("--name", type=own_task_name, help="name of the task (default: derived from IMAGE)")
    parser.add_argument("-d", "--detach", action="store_true", help="run in the background and print the task's name")
    parser.add_argument("--rm", action="store_true", help="remove the task when it has ended")
    parser.add_argument("--replace", action="store_true", help="remove an existing task of this name first")
    parser.add_argument("--scope", action="store_true", help="run the tender as a child of the caller, in a scope")
    parser.add_argument("--dry-run", action="store_true", help="print the plan without starting the task")
    parser.add_argument(
        "--declare", metavar="NAME", type=task_name,
        help="write the task to /etc/solo5/NAME.unikernel instead of starting it; with --dry-run: print it",
    )  # fmt: skip
    for setting in SETTINGS.values():
        if setting.option.startswith("--"):
            parser.add_argument(
                *setting.options, dest=setting.name, metavar=setting.form.replace("…", ""), help=setting.described,
                action="append" if setting.is_list else "store",
            )  # fmt: skip
    parser.add_output_options(json="print JSON, with --detach or --dry-run")
    parser.add_argument("Image", metavar="IMAGE", help=SETTINGS["Image"].help)
    rest = parser.add_argument("Argument", metavar="ARG", nargs=REMAINDER, help=SETTINGS["Argument"].help)
    rest.required = False  # else argparse's error for a missing IMAGE lists ARG as required too


def execute(arguments: Namespace, context: CommandContext) -> int:
    _check_exclusive_options(arguments)
    workload = _workload(arguments)
    if arguments.declare:
        from solo5_systemd.cli.run_modes import declare

        return declare(workload, context, replace=arguments.replace, dry_run=arguments.dry_run)
    if arguments.dry_run or arguments.scope:
        from solo5_systemd.cli import run_modes

        if arguments.dry_run:
            return run_modes.print_plan(workload, context, arguments)
        run_modes.exec_in_scope(workload, context)
    return context.run(lambda engine: _start(engine, workload, arguments, context))


def _check_exclusive_options(arguments: Namespace) -> None:
    if arguments.detach and arguments.scope:
        raise InvalidRequestError("--detach and --scope are mutually exclusive: a scope ends with its caller.")
    if arguments.rm and (arguments.detach or arguments.scope):
        other = "--detach" if arguments.detach else "--scope"
        raise InvalidRequestError(
            f"--rm and {other} are mutually exclusive: no solo5ctl process waits for the end of the task.",
            "Remove the task later: solo5ctl rm NAME",
        )
    given = (("--name", arguments.name), ("--detach", arguments.detach), ("--rm", arguments.rm))
    also = (("--scope", arguments.scope), ("--json", arguments.json))
    if arguments.declare and (second := next((option for option, value in (*given, *also) if value), None)):
        raise InvalidRequestError(
            f"--declare and {second} are mutually exclusive: systemd starts a declared task from its file.",
            "Its name is that of the task: solo5ctl run --declare NAME IMAGE",
        )
    if arguments.json and not (arguments.dry_run or arguments.detach):
        raise InvalidRequestError("--json requires --dry-run or --detach: in the foreground, output is the console.")


def _workload(arguments: Namespace) -> Workload:
    """Return the workload that a command line describes."""
    # Settings are read only where an option may reach the guest by DHCP alone.
    name = arguments.declare or arguments.name or derived_name(arguments.Image, os.urandom(2).hex())
    found = workload(name, Given(arguments), lambda: read_settings().served)
    if found.idle_stops and not arguments.declare:
        raise InvalidRequestError(
            "--idle-action stop is for declared tasks: expected sleep, since no unit file would start it again.",
            f"Declare it: solo5ctl run --declare {name} --idle-action stop …",
        )
    return replace(found, kind=UnitKind.SCOPE) if arguments.scope else found


def derived_name(image: str, suffix: str) -> TaskName:
    """Return the default task name: the file name's stem and a suffix that makes it unique."""
    stem = image.rpartition("/")[2].partition(".")[0]
    usable = re.sub(r"[^A-Za-z0-9_-]+", "-", stem, flags=re.ASCII).lstrip("-_")[:64]
    return task_name(f"{usable or 'unikernel'}-{suffix}")


class Given(Values):
    """The texts that argparse has found. A destination is a setting's name."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments

    def given(self, name: str) -> bool:
        """Return whether an option is given, perhaps with an empty value, which is an error."""
        return getattr(self._arguments, name, None) is not None

    def parsed(self, name: str, parse: Parse[T]) -> Iterator[T]:
        """Yield the values of an option; raises as `parse`."""
        found = getattr(self._arguments, name, None)
        texts = [found] if isinstance(found, str) else found or ()
        return (value_of(parse, text, self.shown(name)) for text in texts)

    def shown(self, name: str) -> str:
        """Return the option."""
        return SETTINGS[name].option

    def path(self, text: str) -> str:
        """Return an absolute path: lexical, since Path.resolve() would follow symbolic links."""
        with host_errors("the current directory cannot be used"):  # it was removed
            return os.path.abspath(text)  # noqa: PTH100


async def _start(engine: Runtime, workload: Workload, arguments: Namespace, context: CommandContext) -> int:
    await context.warn_unenforced(engine, workload)
    if arguments.replace:
        from solo5_systemd.engine.facts import check_undeclared  # for startup time

        check_undeclared(workload.name)  # else it would be removed, and the start refused
        await remove_existing(engine, workload.name)
    if not arguments.detach:
        from solo5_systemd.cli import run_modes

        return await run_modes.run_attached(engine, workload, context.screen, remove=arguments.rm)
    started = await engine.start(workload)
    if arguments.json:
        from solo5_systemd.cli.task_output import task_json  # for startup time

        context.screen.json(task_json(await engine.task(started.name)))
    else:
        context.screen.write(f"{started.name}\n")
    return 0
