"""The ways of `solo5ctl run` besides a service: in the foreground, as a plan, as a scope, as a declaration."""

import asyncio
import os
import shlex
import signal as signals
from argparse import Namespace
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NoReturn

from solo5_systemd.base.errors import DependencyError, HostError, InvalidRequestError, NoSuchTaskError, Solo5Error
from solo5_systemd.cli.context import CommandContext, remove_existing
from solo5_systemd.cli.task_output import lease_text, port_lines, reservation_json
from solo5_systemd.cli.terminal import Screen
from solo5_systemd.cli.verbs.logs import copy_console
from solo5_systemd.engine.plan import Plan
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Task
from solo5_systemd.host.tenders import execute
from solo5_systemd.journal import console
from solo5_systemd.settings import files
from solo5_systemd.task.properties import directive
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.outcome import Ending, Outcome

FORWARDED_SIGNALS = (signals.SIGINT, signals.SIGTERM)


async def run_attached(engine: Runtime, workload: Workload, screen: Screen, *, remove: bool) -> int:
    """Start a task, copy its console until it ends, and return its exit status."""
    starting = asyncio.ensure_future(engine.start(workload))
    asyncio.get_running_loop().add_signal_handler(signals.SIGTERM, starting.cancel)  # as asyncio.run() on SIGINT
    started = await starting
    with _signal_queue() as received:
        task = await engine.task(started.name)
        async with asyncio.TaskGroup() as group:
            passing = group.create_task(_forward_signals(received, engine, task, group))
            try:
                count = await copy_console(engine.follow(task), screen)
            except DependencyError:  # without libsystemd the task would run unseen
                await remove_existing(engine, task.name)
                raise
            passing.cancel()
        ended = await engine.wait(task.name)
    if not count and (problem := await console.storage_problem(task.state.log_namespace)):
        screen.message(f"no console lines: {problem}")
    if remove:
        await engine.remove(task.name, force=False)
    outcome = ended.outcome or Outcome(ending=Ending.UNKNOWN, sentence="ended with unknown status")
    # A tender that refuses an image writes the reason to the console itself.
    if not outcome.plain and outcome.ending is not Ending.TENDER_REFUSED:
        screen.message(f"{task.name}: {outcome.verdict}")
    return outcome.shell_status


async def _forward_signals(
    received: asyncio.Queue[signals.Signals], engine: Runtime, task: Task, group: asyncio.TaskGroup
) -> None:
    async def stop(signal: int) -> None:
        with suppress(NoSuchTaskError):
            await engine.stop(task.name, signal=signal)

    stopping = group.create_task(stop(await received.get()))
    await received.get()
    with suppress(InvalidRequestError, NoSuchTaskError):  # the first signal has ended it
        await engine.kill(task.name, signals.SIGKILL)
    await stopping


@contextmanager
def _signal_queue() -> Iterator[asyncio.Queue[signals.Signals]]:
    """Handle SIGINT and SIGTERM by putting them into a queue."""
    queue: asyncio.Queue[signals.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for signal in FORWARDED_SIGNALS:
        loop.add_signal_handler(signal, queue.put_nowait, signal)
    try:
        yield queue
    finally:
        for signal in FORWARDED_SIGNALS:  # from here on, Ctrl-C ends solo5ctl itself
            loop.remove_signal_handler(signal)


def print_plan(workload: Workload, context: CommandContext, arguments: Namespace) -> int:
    """Print the plan of a start; raises Solo5Error as the preflight."""

    async def command(engine: Runtime) -> Plan:
        await context.warn_unenforced(engine, workload)
        return await engine.starter.preview(workload)

    plan = context.run(command)
    return context.show(arguments, lambda: _plan_json(plan), lambda: _plan_text(plan))


def plain_value(value: object) -> object:
    """Return a D-Bus value that JSON can represent: bytes are decoded to text."""
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    return value


def _plan_text(plan: Plan) -> str:
    reserved = plan.reservation
    sections = {
        plan.unit.name: [directive(each) for each in plan.unit.properties],
        "command line": [shlex.join(plan.argv)],
        "leases": [f"{lease.nic} {lease_text(lease)}" for lease in reserved.leases],
        "ports": [f"{line} ({each.nic})" for line, each in port_lines(reserved.ports)],
        "nftables": plan.nft.splitlines(),
    }
    return "\n".join("\n".join((f"# {title}", *lines, "")) for title, lines in sections.items() if lines)


def _plan_json(plan: Plan) -> dict[str, object]:
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


def exec_in_scope(workload: Workload, context: CommandContext) -> NoReturn:
    """Start the scope with this process in it, and execute the tender."""
    line: list[str] = []

    @asynccontextmanager
    async def spawn(argv: Sequence[str], descriptors: Sequence[int], _: str) -> AsyncGenerator[int, None]:
        for descriptor in descriptors:  # the tender has them, and so the locks of its disks, over execve(2)
            os.set_inheritable(descriptor, True)
        line.extend(argv)
        yield os.getpid()

    async def command(engine: Runtime) -> None:
        await context.warn_unenforced(engine, workload)
        async with engine.start_scope(workload, spawn):
            pass

    context.run(command)
    execute(line)


def declare(workload: Workload, context: CommandContext, *, replace: bool, dry_run: bool) -> int:
    """Write a declaration, or print it, and return the exit status."""
    from solo5_systemd.declared.declaration import write_declaration
    from solo5_systemd.declared.files import write_source
    from solo5_systemd.declared.other_units import check_free, of_generators, unit_files

    text = write_declaration(workload)
    if dry_run:
        context.screen.write(text)
        return 0
    if not context.root:
        raise HostError("writing a declaration requires root.", "Run it with sudo, or print it: --dry-run")
    check_free(workload.name, of_generators(), unit_files())  # else the commands below would start that unit
    path = write_source(workload.name, text, files.ETC, replace=replace)
    context.screen.write(f"{path}\n")

    async def warn(engine: Runtime) -> None:  # what the task lacks may come later
        try:
            await context.warn_unenforced(engine, workload)
            await engine.starter.check_declared(workload)
        except Solo5Error as error:
            context.screen.message(f"warning: the task could not start now: {error}")

    context.run(warn)
    context.screen.message(
        f"To start it now and at each boot: systemctl daemon-reload && systemctl enable --now {workload.name}"
    )
    return 0
