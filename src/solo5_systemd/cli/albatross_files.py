"""Files of `solo5ctl convert`: the dump of albatross, and the declarations and images that are written."""

import hashlib
import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from solo5_systemd.declared.albatross import (
    Converted,
    Dump,
    Unikernel,
    converted,
    converted_name,
    image_content,
)
from solo5_systemd.errors import HostError, ImageError, InvalidRequestError, NotFoundError
from solo5_systemd.image.elf import read_manifest
from solo5_systemd.sanitize import bounded

DUMP_MAX = 1 << 30
"""Bytes of a dump, which is read into memory."""

IMAGES_MAX = 4 << 30
"""Bytes of all images together, without their compression."""

QUOTED_MAX = 80
"""Characters of a name in a message."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A declaration, with its unikernel and what is known of its image."""

    converted: Converted
    unikernel: Unikernel
    image: str
    sha256: str

    @property
    def file(self) -> str:
        """The name of the declaration's file."""
        return f"{self.converted.name}.unikernel"


def messages(dump: Dump, results: Sequence[Result]) -> Iterator[str]:
    """Yield what is not as it was, and what is to be done."""
    for each in results:
        yield from (f"{each.converted.name}: {note}" for note in each.converted.notes)
    for unikernel in dump.unikernels:
        if not unikernel.is_solo5:
            yield f"{bounded(unikernel.name, QUOTED_MAX)!r} is a virtual machine of bhyve: not converted."
    for name in dump.policies:
        shown = bounded(name, QUOTED_MAX)
        yield f"the policy of {shown!r} is not converted: limit tasks by a slice, or by their own keys."


def read_content(path: str) -> bytes:
    """Return the content of a dump.

    Raises:
        NotFoundError: there is no such file.
        HostError: it cannot be read.
        InvalidRequestError: it is no regular file, or too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > DUMP_MAX:
                raise InvalidRequestError(
                    f"{path!r} is no dump of albatross: expected a regular file of {DUMP_MAX >> 20} MiB or less."
                )
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(DUMP_MAX)
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path!r} does not exist.") from error
    except OSError as error:
        raise HostError(f"{path!r} cannot be read: {error.strerror}.") from error


def convert(dump: Dump, directory: str) -> Sequence[Result]:
    """Convert all unikernels, or none.

    Raises:
        InvalidRequestError: one cannot be converted.
    """
    results: list[Result] = []
    names: dict[str, str] = {}
    size = 0
    for unikernel in dump.unikernels:
        if not unikernel.is_solo5:
            continue
        name = converted_name(unikernel)
        if name in names:
            raise InvalidRequestError(
                f"two unikernels would be task {name}, {names[name]} and {unikernel.name}: expected different names."
            )
        names[name] = unikernel.name
        content = image_content(unikernel)
        size += len(content)
        if size > IMAGES_MAX:
            raise InvalidRequestError(f"the images are too large: expected {IMAGES_MAX >> 30} GiB or less together.")
        facts = None
        with suppress(ImageError):
            facts = read_manifest(io.BytesIO(content), len(content))
        image = f"{name}.{facts.manifest.target if facts else 'image'}"
        made = converted(unikernel, f"{directory}/{image}", facts)
        sha256 = hashlib.sha256(content).hexdigest()
        results.append(Result(converted=made, unikernel=unikernel, image=image, sha256=sha256))
    return results


def write(results: Sequence[Result], directory: str) -> None:
    """Write images and declarations, all or none.

    Raises:
        InvalidRequestError: a file exists.
        HostError: one cannot be written.
    """
    written: list[str] = []
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)  # noqa: PTH103 - a name, whose files have a descriptor
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"{directory!r} cannot be used: {error.strerror}.") from error
    try:
        for each in results:
            _put(place, each.image, image_content(each.unikernel), written)
            _put(place, each.file, each.converted.text.encode(), written)
        os.fsync(place)
    except BaseException as error:
        for name in written:
            os.unlink(name, dir_fd=place)  # noqa: PTH108 - in the directory that was opened
        if isinstance(error, FileExistsError):
            raise InvalidRequestError(
                f"{directory}/{error.filename} exists: expected new names in {directory}.", "Name an empty directory."
            ) from error
        if isinstance(error, OSError):
            raise HostError(f"{directory!r} cannot be written: {error.strerror}.") from error
        raise
    finally:
        os.close(place)


def _put(place: int, name: str, content: bytes, written: list[str]) -> None:
    """Create a file in a directory; a link is not followed."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=place)
    written.append(name)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def document(result: Result, directory: str | None) -> dict[str, object]:
    """Return a result as JSON; `directory`: that of its files, None if it has none."""
    found: dict[str, object] = {
        "name": result.converted.name,
        "albatross_name": result.unikernel.name,
        "declaration": result.converted.text,
        "image_sha256": result.sha256,
        "notes": list(result.converted.notes),
    }
    if directory is None:
        return found
    return found | {"file": f"{directory}/{result.file}", "image": f"{directory}/{result.image}"}
