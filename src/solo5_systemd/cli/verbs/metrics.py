"""`solo5ctl metrics`: prints metrics of tasks and networks."""

from argparse import Namespace
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import host_errors
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.metric_families import exposition, families
from solo5_systemd.cli.parser import Parser

if TYPE_CHECKING:
    from solo5_systemd.engine.queries import Queries


def _write_textfile(file: str, text: str) -> None:
    """Replace a file atomically, mode 0644; no fsync(2): metrics of before a power failure are worthless after it."""
    from pathlib import Path

    from solo5_systemd.base.atomic_file import replace_file
    from solo5_systemd.base.locks import closing
    from solo5_systemd.base.paths import open_directory, within

    path = Path(file)
    hint = f"Check the directory: ls -ld {path.parent}"
    with closing(open_directory(path.parent)) as directory, host_errors(f"{path} cannot be written", hint):
        # The temporary name does not match *.prom, the pattern of the textfile collector.
        replace_file(within(directory, path.name), text, mode=0o644, several_writers=True)


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--textfile", metavar="PATH", help="write to PATH in the format of node_exporter's textfile collector"
    )
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    async def command(engine: "Queries") -> int:
        tasks = await engine.tasks(ended=False, reservations=False)
        endpoints = await engine.endpoints()  # of dormant tasks as well, where none runs
        samples = await engine.samples(disks=context.root)
        full = await engine.full_disks() if context.root else ()
        # Without leases, solo5-networkd is not started just to report that it has none.
        networks = await engine.backends.networks.networks() if context.root and endpoints else ()
        found = families(tasks, endpoints, samples, networks, full)
        if arguments.textfile:
            _write_textfile(arguments.textfile, exposition(found, for_file=True))
        else:
            context.screen.write(exposition(found))
        return 0

    return context.query(command)
