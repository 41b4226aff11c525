"""Programs that are linked with the host's C library, under the seccomp filter of a task's unit.

Run on Debian 12 and 13, which have different C libraries.
"""

import platform
import re
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from solo5_systemd.unit.confinement import SYSTEM_CALLS

PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *run(void *data) { return data; }

int main(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL) || pthread_join(thread, NULL))
        return 1;
    printf("%s\\n", getenv("ABSENT") ? "present" : "ran");
    free(malloc(1 << 20));
    return 0;
}
"""

# <linux/filter.h>, <linux/seccomp.h>, <linux/prctl.h>
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_PR_SET_SECCOMP, _MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38

_NUMBER = re.compile(r"#define __NR_(\w+) (\d+)")


# In a process of its own: what forks beside gRPC's threads leaves descriptors behind.
_EXECUTE = f"""
import ctypes, os, sys
code = bytes.fromhex(sys.argv[1])
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))
program, prctl = Program(len(code) // 8, code), ctypes.CDLL(None).prctl
if prctl({_PR_SET_NO_NEW_PRIVS}, 1, 0, 0, 0) or prctl({_PR_SET_SECCOMP}, {_MODE_FILTER}, ctypes.byref(program)):
    sys.exit("prctl failed")
os.execv(sys.argv[2], sys.argv[2:])
"""


def numbers() -> dict[str, int]:
    header = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
    return {name: int(number) for name, number in _NUMBER.findall(header.read_text())}


def filter_of(calls: Iterable[str]) -> bytes:
    """Return a seccomp program that kills a process at the first system call that is not in *calls*."""
    of = numbers()
    code = [struct.pack("HBBI", _LOAD, 0, 0, 0)]
    for call in calls:
        code.append(struct.pack("HBBI", _EQUAL, 0, 1, of[call]))
        code.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    return b"".join((*code, struct.pack("HBBI", _RETURN, 0, 0, _KILL)))


def ended(program: Path, calls: Iterable[str]) -> tuple[int, bytes]:
    command = [sys.executable, "-I", "-c", _EXECUTE, filter_of(calls).hex(), str(program)]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return process.returncode, process.stdout


@pytest.fixture(params=["-static-pie", "-pie"], scope="module")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("linked") / "program"
    subprocess.run(["gcc", request.param, "-x", "c", "-", "-o", path], input=PROGRAM.encode(), check=True)
    return path


def test_the_c_library_needs_no_forbidden_call(program: Path) -> None:
    assert ended(program, SYSTEM_CALLS) == (0, b"ran\n")


def test_a_forbidden_call_ends_it(program: Path) -> None:
    assert ended(program, [call for call in SYSTEM_CALLS if call != "write"]) == (-31, b"")
