"""The libraries of a dynamically linked program, from the ELF files themselves.

A task's root has no /etc/ld.so.cache: the search is in DT_RUNPATH or DT_RPATH of the file that needs a library, then
in the loader's built-in directories (docs/decisions/sandbox-root.md). Parsed files are cached while they are unchanged.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from solo5_systemd.base.elf_headers import (
    HEADER_SIZE,
    IDENT,
    PT_DYNAMIC,
    PT_INTERP,
    PT_LOAD,
    SEGMENT_SIZE,
    Header,
    Segment,
    parse_segments,
)

MAX_FILES = 64
"""The most files to bind one by one. The tenders of Solo5 0.12.1 need three."""

_TABLE_MAX = 1 << 20
"""The most bytes of one table. The dynamic string table of glibc has 30 000."""

_TAG = struct.Struct("<qQ")
_NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 1, 5, 10, 15, 29
_DLOPEN_NAMES = (b"\0dlopen\0", b"\0dlmopen\0")


class UnknownFilesError(Exception):
    """The libraries cannot be determined; the message continues a sentence ("it loads libraries …")."""


def mapped_files(program: str) -> tuple[str, ...]:
    """Return the loader and all libraries of a program, by the paths at which the loader finds them; none if static.

    Raises:
        UnknownFilesError: not a 64-bit ELF file, a library is missing, or the program calls dlopen(3).
    """
    first = _read(program)
    if first.interpreter is None:
        return ()
    if first.loads_more:
        raise UnknownFilesError("it loads libraries while it runs (dlopen)")
    found = [first.interpreter]
    pending = [(program, first)]
    while pending:
        path, needs = pending.pop()
        for library in _libraries(path, needs, first.interpreter):
            if library not in found:
                found.append(library)
                pending.append((library, _read(library)))
        if len(found) > MAX_FILES:
            raise UnknownFilesError(f"it needs more than {MAX_FILES} files")
    return tuple(found)


def _libraries(path: str, needs: "_Dynamic", interpreter: str) -> Iterator[str]:
    """Yield the paths of the libraries in a file's DT_NEEDED."""
    for name in needs.names:
        if name == interpreter.rpartition("/")[2]:  # the loader, which is among the files already
            continue
        candidates = [name] if "/" in name else [f"{place}/{name}" for place in _search_path(path, needs)]
        library = next((each for each in candidates if os.path.isfile(each)), None)  # noqa: PTH113 - no object for each
        if library is None or not library.startswith("/"):
            raise UnknownFilesError(f"{name}, which {path} needs, is not where the loader looks for it")
        yield library


def _search_path(path: str, needs: "_Dynamic") -> Sequence[str]:
    own = [each.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", path.rpartition("/")[0]) for each in needs.search]
    if any("$" in each for each in own):
        raise UnknownFilesError(f"the search path of {path} has a variable other than $ORIGIN")
    triplet = f"{os.uname().machine}-linux-gnu"
    return [*own, f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]


@dataclass(frozen=True, kw_only=True)
class _Dynamic:
    """The dynamic section of an ELF file: loader, DT_NEEDED names, DT_RUNPATH or DT_RPATH, use of dlopen(3)."""

    interpreter: str | None
    names: Sequence[str] = ()
    search: Sequence[str] = ()
    loads_more: bool = False


def _read(path: str) -> _Dynamic:
    try:
        status = os.stat(path)  # noqa: PTH116 - a path that is used once
        return _cached(path, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
    except (OSError, struct.error, ValueError) as error:
        raise UnknownFilesError(f"{path} cannot be read as a 64-bit ELF file: {error}") from error


@lru_cache(maxsize=256)
def _cached(path: str, identity: tuple[int, ...]) -> _Dynamic:  # noqa: ARG001 - another file has another
    with Path(path).open("rb") as file:
        return _parse(file)


def _parse(file: BinaryIO) -> _Dynamic:
    raw = file.read(HEADER_SIZE)
    if not raw.startswith(IDENT):
        raise ValueError("wrong ELF identification")
    header = Header.parse(raw)
    segments = parse_segments(_at(file, header.e_phoff, header.e_phnum * SEGMENT_SIZE))
    interpreter, dynamic = (_content(file, segments, kind) for kind in (PT_INTERP, PT_DYNAMIC))
    loader = interpreter.rstrip(b"\0").decode() or None
    tags = list(_TAG.iter_unpack(dynamic[: len(dynamic) // _TAG.size * _TAG.size]))
    one = dict(reversed(tags))  # of tags with one type, the loader uses the first
    if _STRTAB not in one:  # without a dynamic section, nothing is needed
        return _Dynamic(interpreter=loader)
    address = one[_STRTAB]
    within = (it for it in segments if it.kind == PT_LOAD and it.address <= address < it.address + it.file_size)
    if (segment := next(within, None)) is None:
        raise ValueError("a table outside of all segments")
    strings = _at(file, segment.offset + address - segment.address, one.get(_STRSZ, 0))
    search = [one[tag] for tag in (_RUNPATH, _RPATH) if tag in one][:1]  # with DT_RUNPATH, the loader ignores DT_RPATH
    return _Dynamic(
        interpreter=loader,
        names=[_string(strings, value) for tag, value in tags if tag == _NEEDED],
        search=[place for value in search for place in _string(strings, value).split(":") if place],
        loads_more=any(word in strings for word in _DLOPEN_NAMES),
    )


def _content(file: BinaryIO, segments: Sequence[Segment], kind: int) -> bytes:
    """Return the content of the first segment of a kind; empty without one."""
    return next((_at(file, it.offset, it.file_size) for it in segments if it.kind == kind), b"")


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    if size > _TABLE_MAX:
        raise ValueError("a table of more than a mebibyte")
    file.seek(offset)
    content = file.read(size)
    if len(content) < size:
        raise ValueError("a table beyond the end of the file")
    return content


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()
