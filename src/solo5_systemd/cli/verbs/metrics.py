"""`solo5ctl metrics`."""

import os
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.cli.metric_families import families
from solo5_systemd.cli.openmetrics import openmetrics, prometheus
from solo5_systemd.cli.parser import Parser
from solo5_systemd.cli.session import Session
from solo5_systemd.errors import HostError

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


# Write a file that others read at any moment: it is the old one or the new one, never a part.


def write_textfile(path: Path, text: str) -> None:
    """Write beside the file, and take its place; to be read by everybody (mode 0644).

    It is not forced to the disk: what was measured before a power cut is of no use after it.

    Raises:
        HostError: it cannot be written; nothing is left half written.
    """
    try:
        # The dot hides it from collectors, which read *.prom.
        descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".new")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            Path(new).replace(path)
        except BaseException:
            Path(new).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise HostError(
            f"{path} cannot be written: {error.strerror}.",
            f"Make the directory, or name another: ls -ld {path.parent}",
        ) from error


def configure(parser: Parser) -> None:
    parser.add_argument(
        "--textfile",
        metavar="PATH",
        type=Path,
        help="write them to a file instead, in the dialect of node exporter's collector of text files",
    )
    parser.add_output_options(json=False)


def execute(arguments: Namespace, session: Session) -> int:
    async def story(engine: "Runtime") -> int:
        tasks = await engine.tasks(ended=False)
        samples = await engine.samples()
        # Where nothing is leased, the network service has nothing to do: it is not woken to say so.
        leased = session.root and any(task.reservation for task in tasks)
        found = families(tasks, samples, await engine.networks() if leased else ())
        if arguments.textfile:
            write_textfile(arguments.textfile, prometheus(found))
        else:
            session.screen.write(openmetrics(found))
        return 0

    return session.engine(story, needs_root=False)
