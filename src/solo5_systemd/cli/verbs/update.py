"""`solo5ctl update`: gives a declared task a new image without a lost connection; `rollback`: the one before."""

import asyncio
import time
from argparse import Namespace
from pathlib import Path

from solo5_systemd.base.declared_units import has_declaration, is_declared
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.names import INVOCATION_LINK, UNITS, TaskName, task_name, update_service
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.declared.update_files import UpdateFiles
from solo5_systemd.declared.update_request import (
    READY_TIMEOUT_S,
    UPDATE_DRAIN_S,
    UPDATE_WATCH_S,
    parse_ready,
    update_time,
)
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.task.quantities import value_of
from solo5_systemd.unit.state import OVER

STEPS_INTERVAL_S = 0.05
"""Seconds between two looks at the steps of an update."""

_PASSING = ("/tmp/", "/var/tmp/", "/run/", "/dev/")  # noqa: S108 - names, not files

EPILOG = """\
The new guest runs next to the old one, as task NAME.next (of NAME@1: NAME.next.1). When it is ready, the published
ports are moved to it in one transaction; open connections stay with the old guest. After the watch the task itself is
started with the new image, the ports are moved back, and NAME.next ends. If the new guest is not ready in time, or ends
within the watch, the old guest gets its ports back and nothing changes.

  solo5ctl update web /srv/unikernels/web-2.hvt
  solo5ctl update web --ready console:listening --watch 5min
  systemctl reload web
"""


ROLLBACK_EPILOG = """\
It is an update like any other, without a lost connection; a second rollback returns to the newer image.

  solo5ctl rollback web
"""


def configure(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", type=task_name, help="declared task that runs or is dormant")
    if parser.verb == "rollback":
        parser.epilog = ROLLBACK_EPILOG
    else:
        parser.epilog = EPILOG
        parser.add_argument(
            "image", metavar="IMAGE", nargs="?", default="",
            help="new image (default: that of the declaration, whose file was replaced)",
        )  # fmt: skip
    for option, metavar, meaning, default in (
        ("--ready", "CONDITION", "tcp:PORT, udp:PORT or console:PATTERN", "its first TCP port"),
        ("--timeout", "TIME", "time for the new guest to become ready", f"{READY_TIMEOUT_S:.0f}s"),
        ("--drain", "TIME", "how long connections of the old guest may last", f"{UPDATE_DRAIN_S:.0f}s"),
        ("--watch", "TIME", "how long the new guest is watched next to the old one", f"{UPDATE_WATCH_S:.0f}s"),
    ):
        key = option.removeprefix("--").capitalize()
        of = f"{meaning} (default: {key}= of the declaration, or {default})"
        parser.add_argument(option, metavar=metavar, help=of)
    parser.add_argument(
        "--pause", action="store_true", help="stop the old guest first: for a task with a disk, or without ports"
    )
    parser.add_argument("--no-block", action="store_true", help="do not wait for the end of the update")
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    files = _files_of(arguments.name, context)
    if arguments.verb == "update":
        return _start(arguments, _new_image(arguments.image), files, context)
    previous = files.previous()
    image = previous.present
    status = _start(arguments, image, files, context)
    if status == 0 and not arguments.no_block:
        context.screen.write(f"{arguments.name}: back to {image} (SHA-256 {previous.sha256[:16]}…)\n")
    return status


def _new_image(given: str) -> str:
    """Return the path of a new image; empty: that of the declaration."""
    if not given:
        return ""
    image = Path(given).resolve()
    if not image.is_file():
        error = InvalidRequestError if image.exists() else NotFoundError
        raise error(f"image {given} is not a file: expected a Solo5 unikernel.")
    if str(image).startswith(_PASSING):
        raise InvalidRequestError(
            f"image {image} may be gone at the next boot, when the task needs it: expected one outside of "
            f"{', '.join(_PASSING)}.",
            "Move it to a directory such as /srv/unikernels.",
        )
    return str(image)


def _files_of(name: TaskName, context: CommandContext) -> UpdateFiles:
    """Return the files of a task's updates; refuse one that is not declared, and an instance that was not started."""
    context.require_root()
    if is_declared(name):
        return UpdateFiles(name)
    if has_declaration(name):  # its directory is made at its first start
        raise InvalidRequestError(f"task {name} does not run.", f"Start it: systemctl start {name}")
    raise NotFoundError(
        f"no task {name!r} is declared in /etc/solo5.",
        f"To declare a task: solo5ctl run … --declare {name}; after a change of a file: systemctl daemon-reload",
    )


def _start(arguments: Namespace, image: str, files: UpdateFiles, context: CommandContext) -> int:
    """Start solo5-update@NAME; without --no-block, show its steps until it is over. Return the exit status.

    An interrupted command leaves the update to systemd.
    """
    unit = update_service(arguments.name)
    parsers = {"ready": parse_ready, "timeout": update_time, "drain": update_time, "watch": update_time}
    texts = {key: text for key in parsers if (text := getattr(arguments, key)) is not None}
    given = {key: value_of(parsers[key], text, f"--{key}") for key, text in texts.items()}

    async def begin(engine: Runtime) -> None:
        units = engine.backends.units
        while (state := await units.active_state(unit)) not in OVER and not files.under_way:  # noqa: ASYNC110 - PID 1's
            await asyncio.sleep(STEPS_INTERVAL_S)  # the unit of an earlier update, whose end would end this one
        if files.under_way and state in OVER:  # its end was killed as well
            files.remove_request()
        files.write_request(image=image, pause=arguments.pause, **given)
        try:
            await units.begin(unit)
        except BaseException:
            files.remove_request()
            raise

    context.run(begin)
    return 0 if arguments.no_block else _show(files, context, f"{UNITS}/{INVOCATION_LINK}{unit}")


def _show(files: UpdateFiles, context: CommandContext, run: str) -> int:
    """Print each step when it is taken, until the update is over; return its exit status."""
    begun, shown, status = time.monotonic(), 0, HostError.exit_status
    under_way, began = True, False
    while under_way:
        running = Path(run).is_symlink()
        began |= running
        # Read first: the last step comes before the unit's end, and that before what is typed next.
        under_way = running or (files.under_way and not began)
        for text, end in files.steps()[shown:]:
            shown += 1
            status = status if end is None else end
            if end:
                context.screen.message(text)
            else:
                context.screen.write(f"{time.monotonic() - begun:7.2f} s  {text}\n")
        if under_way:
            time.sleep(STEPS_INTERVAL_S)
    return status
