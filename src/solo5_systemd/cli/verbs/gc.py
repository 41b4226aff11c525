"""`solo5ctl gc`: removes orphaned resources."""

import asyncio
from argparse import Namespace

from solo5_systemd.base.sanitize import printable
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.declared.update_files import collect_previous
from solo5_systemd.engine.runtime import Runtime


def configure(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="list orphaned resources without removing them")
    parser.add_output_options(json=True)


def execute(arguments: Namespace, context: CommandContext) -> int:
    async def collect(engine: Runtime) -> list[str]:
        return [
            *await engine.gc.collect(dry_run=arguments.dry_run),
            *await asyncio.to_thread(collect_previous, dry_run=arguments.dry_run),
        ]

    removed = context.run(collect)
    return context.show(arguments, lambda: removed, lambda: "".join(f"{printable(line)}\n" for line in removed))
