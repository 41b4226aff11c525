"""`solo5ctl rollback`: updates a declared task to the image that its last update has replaced."""

from argparse import Namespace

from solo5_systemd.base.names import task_name
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.verbs.update import add_update_options, files_of, requested, start_update

EPILOG = """\
It is an update like any other, without a lost connection; a second rollback returns to the newer image.

  solo5ctl rollback web
"""


def configure(parser: Parser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("name", metavar="NAME", type=task_name, help="declared task that runs or is dormant")
    add_update_options(parser)


def execute(arguments: Namespace, context: CommandContext) -> int:
    files = files_of(arguments.name, context)
    previous = files.previous()
    request = requested(arguments, previous.present)
    status = start_update(arguments.name, request, files, context, block=not arguments.no_block)
    if status == 0 and not arguments.no_block:
        context.screen.write(f"{arguments.name}: back to {request.image} (SHA-256 {previous.sha256[:16]}…)\n")
    return status
