"""The libraries of programs: generated ELF files, and programs of this host."""

import os
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.fast.image.elfbuilder import Elf, Segment

from solo5_systemd.host.tender_libraries import MAX_FILES, UnknownFilesError, mapped_files

LOADER = "/lib64/ld-linux-x86-64.so.2"
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 1, 5, 10, 15, 29


def elf(*needed: str, interpreter: str = "", runpath: str = "", rpath: str = "", imports: Iterable[str] = ()) -> bytes:
    """Return an ELF file with a dynamic section and no code."""
    strings, tags = b"\0", []
    texts = [*((_NEEDED, name) for name in needed), (_RUNPATH, runpath), (_RPATH, rpath)]
    for tag, text in (each for each in texts if each[1]):
        tags.append((tag, len(strings)))
        strings += text.encode() + b"\0"
    strings += b"".join(name.encode() + b"\0" for name in imports)
    tags += [(_STRTAB, 0x1000), (_STRSZ, len(strings)), (0, 0)]
    segments = [
        Segment(kind=_LOAD, content=strings, address=0x1000),
        Segment(kind=_DYNAMIC, content=b"".join(struct.pack("<qQ", *each) for each in tags)),
        *([Segment(kind=_INTERPRETER, content=interpreter.encode() + b"\0")] if interpreter else ()),
    ]
    return Elf(segments=segments, header={"type": 3}).build()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory for libraries."""
    (tmp_path / "lib").mkdir()
    return tmp_path


def program(made: Path, content: bytes) -> str:
    path = made / "solo5-spt"
    path.write_bytes(content)
    return str(path)


def library(made: Path, name: str, content: bytes) -> str:
    path = made / "lib" / name
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("where", ["{}/lib", "$ORIGIN/lib", "${{ORIGIN}}/lib", "/nowhere:{}/lib"])
def test_libraries_of_libraries_are_found_where_their_files_say(made: Path, where: str) -> None:
    first = library(made, "libone.so.1", elf("libtwo.so.2", "ld-linux-x86-64.so.2", runpath="$ORIGIN"))
    second = library(made, "libtwo.so.2", elf("libone.so.1", rpath=str(made / "lib")))
    path = program(made, elf("libone.so.1", interpreter=LOADER, runpath=where.format(made)))
    assert mapped_files(path) == (LOADER, first, second)
    assert mapped_files(program(made, elf())) == (), "a static program"


def test_a_runpath_is_not_that_of_a_library(made: Path) -> None:
    library(made, "libone.so.1", elf("libtwo.so.2"))
    library(made, "libtwo.so.2", elf())
    path = program(made, elf("libone.so.1", interpreter=LOADER, runpath=str(made / "lib")))
    with pytest.raises(UnknownFilesError, match=r"libtwo.so.2, which .*libone.so.1 needs, is not where the loader"):
        mapped_files(path)


def test_an_upgrade_of_a_library_counts_from_the_next_time_on(made: Path) -> None:
    one = library(made, "libone.so.1", elf())
    path = program(made, elf("libone.so.1", interpreter=LOADER, runpath=str(made / "lib")))
    assert mapped_files(path) == (LOADER, one)
    two = library(made, "libtwo.so.2", elf())
    (made / "new").write_bytes(elf("libtwo.so.2", runpath="$ORIGIN"))
    (made / "new").rename(one)
    assert mapped_files(path) == (LOADER, one, two)


REFUSED = {
    "wrong ELF identification": b"#!/bin/sh\n",
    "a table beyond the end of the file": elf(interpreter=LOADER)[:200],
    "a table of more than a mebibyte": elf("x", interpreter=LOADER).replace(
        struct.pack("<qQ", _STRSZ, 3), struct.pack("<qQ", _STRSZ, 1 << 40)
    ),
    "loads libraries while it runs": elf(interpreter=LOADER, imports=("dlopen",)),
    "is not where the loader looks for it": elf("libabsent.so.9", interpreter=LOADER),
    "has a variable other than": elf("libabsent.so.9", interpreter=LOADER, runpath="/x/$LIB"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_unknown_libraries_have_a_reason(made: Path, reason: str) -> None:
    with pytest.raises(UnknownFilesError, match=reason):
        mapped_files(program(made, REFUSED[reason]))


def test_a_file_that_is_cut_or_changed_anywhere_is_read_or_refused(made: Path) -> None:
    whole = elf("libabsent.so.9", interpreter=LOADER, runpath="/x")
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :] for at in range(len(whole))]
    for content in damaged:
        try:
            found = mapped_files(program(made, content))
        except UnknownFilesError:
            continue
        assert all(isinstance(each, str) for each in found)


def test_there_is_an_end_to_it(made: Path) -> None:
    names = [f"lib{number}.so" for number in range(MAX_FILES + 1)]
    for name in names:
        library(made, name, elf())
    path = program(made, elf(*names, interpreter=LOADER, runpath=str(made / "lib")))
    with pytest.raises(UnknownFilesError, match=f"it needs more than {MAX_FILES} files"):
        mapped_files(path)


def test_of_a_program_of_this_machine_it_is_what_the_loader_maps() -> None:
    path = "/bin/cat"
    listed = subprocess.run(
        [path], env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True, check=True
    ).stdout
    mapped = {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}
    assert mapped
    assert {os.path.realpath(each) for each in mapped_files(path)} == {os.path.realpath(each) for each in mapped}
