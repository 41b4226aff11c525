"""Write a file that others read at any moment: it is the old one or the new one, never a part."""

import os
import tempfile
from pathlib import Path

from solo5_systemd.errors import HostError


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
