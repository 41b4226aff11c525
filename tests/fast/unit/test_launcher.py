"""The launcher of tenders (`src/confine`): which arguments of calls its filter permits. Numbers are those of x86-64."""

import json
import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src/confine"

_NUMBER = re.compile(r"#define __NR_(\w+) (\d+)")

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

_CALLS = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def result(words):
    done = libc.syscall(*map(ctypes.c_long, words))
    return errno.errorcode[ctypes.get_errno()] if done == -1 else "done"
print(json.dumps([result(words) for words in json.loads(sys.argv[1])]))
"""

_LIMIT = "import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE)[1])"

# <linux/*.h>
TUNSETIFF, SIOCGIFMTU, FIONREAD, KVM_RUN = 0x400454CA, 0x8921, 0x541B, 0xAE80
TIOCSTI, FS_IOC_RESVSP64, LOOP_CLR_FD, SIOCSIFHWADDR, SIOCETHTOOL = 0x5412, 0x4030582A, 0x4C01, 0x8924, 0x8946
MAP_PRIVATE, MAP_ANONYMOUS, MAP_HUGETLB, MFD_HUGETLB = 0x2, 0x20, 0x40000, 0x4
F_GETFL, F_SETLEASE, F_NOTIFY, F_OFD_SETLK = 3, 1024, 1026, 37
PR_SET_NAME, PR_SET_DUMPABLE, PR_SET_MEMORY_MERGE = 15, 4, 67
MADV_DONTNEED, MADV_MERGEABLE = 4, 12
FILTER, NEW_LISTENER = 1, 8
HIGH = 1 << 32
NEWER = {"fchmodat2": 452, "setxattrat": 463}
"""Calls that headers of Debian 12 do not have."""

PERMITTED: dict[str, list[tuple[int, ...]]] = {
    "ioctl": [(1, FIONREAD, 0), (1, TUNSETIFF, 0), (1, SIOCGIFMTU, 0), (1, KVM_RUN, 0)],
    "fcntl": [(1, F_GETFL)],
    "mmap": [(0, 4096, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)],
    "memfd_create": [(0, 0)],
    "madvise": [(0, 4096, MADV_DONTNEED)],
    "prctl": [(PR_SET_NAME, 0)],
    "seccomp": [(FILTER, 0, 0)],
    "personality": [(0xFFFFFFFF,)],
    "socket": [(socket.AF_INET, socket.SOCK_DGRAM, 0), (socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)],
    "bind": [(1, 0, 12)],
    "sendto": [(1, 0, 0, 0, 0, 12), (1, 0, 0, 0, 0, 0)],
    "open": [(0, os.O_RDWR | os.O_CLOEXEC)],
    "openat": [(-100, 0, os.O_RDWR, 0o6777)],  # without O_CREAT the mode is whatever the register has
}
"""Arguments that a tender has, by call."""

REFUSED: dict[str, list[tuple[int, ...]]] = {
    "ioctl": [
        *[(1, request, 0) for request in (TIOCSTI, FS_IOC_RESVSP64, LOOP_CLR_FD, SIOCSIFHWADDR, SIOCETHTOOL)],
        (1, HIGH | FS_IOC_RESVSP64, 0),  # the kernel takes the lower half
    ],
    "fcntl": [(1, command, 0) for command in (F_SETLEASE, F_NOTIFY, F_OFD_SETLK, HIGH | F_SETLEASE)],
    "mmap": [(0, 4096, 0, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0)],
    "memfd_create": [(0, MFD_HUGETLB)],
    "madvise": [(0, 4096, MADV_MERGEABLE)],
    "prctl": [(PR_SET_DUMPABLE, 1), (PR_SET_MEMORY_MERGE, 1, 0, 0, 0)],
    "seccomp": [(FILTER, NEW_LISTENER, 0)],
    "personality": [(0,)],
    "socket": [
        (socket.AF_UNIX, socket.SOCK_STREAM, 0),
        (socket.AF_INET, socket.SOCK_STREAM, 0),
        (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
        (socket.AF_INET6, socket.SOCK_DGRAM, 0),
        (socket.AF_NETLINK, socket.SOCK_RAW, 12),
        (HIGH | socket.AF_UNIX, socket.SOCK_DGRAM, 0),
    ],
    "bind": [(1, 0, 16), (1, 0, 28)],
    "sendto": [(1, 0, 0, 0, 0, 16)],
    "setsockopt": [(1, 0, 35, 0, 0)],
    "sendmsg": [(1, 0, 0)],
    "sendmmsg": [(1, 0, 0, 0)],
    "connect": [(1, 0, 16)],
    "io_uring_setup": [(1, 0)],
    "fallocate": [(1, 1, 0, 4096)],
    "process_madvise": [(1, 0, 0, MADV_MERGEABLE, 0)],
    "socketpair": [(socket.AF_UNIX, socket.SOCK_DGRAM, 0, 0)],
    "open": [(0, os.O_CREAT, 0o4755), (0, os.O_TMPFILE | os.O_RDWR, 0o600)],
    "openat": [(-100, 0, os.O_CREAT, 0o4755), (-100, 0, os.O_TMPFILE | os.O_RDWR, 0o600)],
    "openat2": [(-100, 0, 0, 24)],
    "creat": [(0, 0o4755)],
    **{call: [(0, 0o104755, 0)] for call in ("mknod", "chmod", "fchmod")},
    **{call: [(-100, 0, 0o104755, 0)] for call in ("mknodat", "fchmodat", "fchmodat2")},
    **{call: [(0, 0, 0, 0, 0)] for call in ("link", "linkat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat")},
    "shmget": [(0, 4096, 0o1600)],
}


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("launcher")
    subprocess.run(["make", "--silent", f"--directory={SOURCE}", f"OUT={made}"], check=True)
    return made / "solo5-confine"


def numbers() -> dict[str, int]:
    header = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
    return {name: int(number) for name, number in _NUMBER.findall(header.read_text())}


def results(calls: dict[str, list[tuple[int, ...]]], *before: str | Path) -> dict[str, str]:
    """Return the result of each call with its arguments, of a process that makes them one after the other."""
    number = {**NEWER, **numbers()}
    named = [(call, arguments) for call, each in calls.items() for arguments in each]
    words = json.dumps([[number[call], *arguments] for call, arguments in named])
    command = [*before, sys.executable, "-I", "-c", _CALLS, words]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return {f"{call}{arguments}": each for (call, arguments), each in zip(named, found, strict=True)}


def test_what_tenders_need_is_as_without_it(launcher: Path) -> None:
    without = results(PERMITTED)
    assert "EPERM" not in without.values()
    assert results(PERMITTED, launcher) == without


def test_all_other_arguments_are_refused(launcher: Path) -> None:
    found = results(REFUSED, launcher)
    assert found == dict.fromkeys(found, "EPERM")


@pytest.mark.parametrize("linked", ["-static-pie", "-pie"])
def test_the_c_library_needs_no_refused_argument(launcher: Path, tmp_path: Path, linked: str) -> None:
    program = tmp_path / "program"
    subprocess.run(["gcc", linked, "-x", "c", "-", "-o", program], input=PROGRAM.encode(), check=True)
    assert subprocess.run([launcher, program], stdout=subprocess.PIPE, check=True).stdout == b"ran\n"


@pytest.mark.parametrize("own_name", [True, False], ids=["scope", "service"])
def test_arguments_and_environment_pass_and_status_returns(launcher: Path, *, own_name: bool) -> None:
    line = ["/bin/sh", "-c", 'printf "%s|" "$0" "$@" "$A"; exit 7', "zero", "", "$x", "--", "two words"]
    done = subprocess.run(
        [str(launcher), *line] if own_name else line,
        executable=launcher,
        env={"A": "b"},
        stdout=subprocess.PIPE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, b"zero||$x|--|two words|b|")


@pytest.mark.parametrize(
    ("pid", "count", "left"),
    [("$$", 2, [False, False, True]), ("$$", 0, [True, True, True]), ("1", 2, [True, True, True])],
    ids=["passed", "none", "to another process"],
)
def test_what_a_socket_unit_passes_is_closed(launcher: Path, pid: str, count: int, left: list[bool]) -> None:
    """The FIFO by which PID 1 has started the task; a tender has its guest's devices alone."""
    program = "import os; print([os.path.exists(f'/proc/self/fd/{fd}') for fd in (3, 4, 5)])"
    script = f'exec 3</dev/null 4</dev/null 5</dev/null; LISTEN_PID={pid} LISTEN_FDS={count} exec "$@"'
    command = ["bash", "-c", script, "bash", str(launcher), sys.executable, "-I", "-c", program]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == f"{left}\n"


@pytest.mark.parametrize("line", [["/nonexistent"], ["solo5-confine"], ["solo5-confine", "/nonexistent"]])
def test_a_tender_that_cannot_be_executed_has_the_status_of_systemd(launcher: Path, line: list[str]) -> None:
    done = subprocess.run(line, executable=launcher, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (203, b"solo5-confine: the tender cannot be executed\n")


@pytest.mark.parametrize(
    ("disks", "before", "limit"),
    [
        ({"a": 1 << 20, "b": 4096}, -1, 1 << 20),
        ({"a": 4096}, -1, 32 << 10),  # of the tender's own filter
        ({"a": 1 << 20}, 4096, 4096),
        ({}, -1, -1),
    ],
)
def test_no_file_becomes_larger_than_the_largest_disk(
    launcher: Path, tmp_path: Path, disks: dict[str, int], before: int, limit: int
) -> None:
    options = []
    for name, size in disks.items():
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
        options += [f"--block:{name}={tmp_path / name}", f"--block-sector-size:{name}=512"]
    assert limit_with(launcher, *options, before=before) == limit


def test_neither_a_device_nor_a_console_that_is_a_file_has_a_limit(launcher: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(bytes(4096))
    option = f"--block:storage={tmp_path / 'disk'}"
    assert limit_with(launcher, "--block:other=/dev/null", option) == -1
    assert limit_with(launcher, "--", option) == -1, "an argument of the guest"
    with (tmp_path / "log").open("w+") as log:
        subprocess.run([launcher, sys.executable, "-I", "-c", _LIMIT, option], stdout=log, check=True)
        log.seek(0)
        assert log.read().strip() == "-1"


def limit_with(launcher: Path, *options: str, before: int = -1) -> int:
    """Return RLIMIT_FSIZE of what the launcher executes; -1: none."""
    done = subprocess.run(
        ["prlimit", f"--fsize={before}", str(launcher), sys.executable, "-I", "-c", _LIMIT, *options],
        stdout=subprocess.PIPE,
        check=True,
    )
    return int(done.stdout)


def test_it_needs_no_other_file(launcher: Path) -> None:
    headers = subprocess.run(["readelf", "--program-headers", launcher], capture_output=True, text=True, check=True)
    assert "INTERP" not in headers.stdout
    assert "DYNAMIC" not in headers.stdout
    assert launcher.stat().st_size < 16 << 10


def test_calls_of_another_abi_end_the_program(launcher: Path) -> None:
    x32 = 0x40000000
    command = [str(launcher), sys.executable, "-I", "-c", _CALLS, f"[[{x32 | numbers()['getpid']}]]"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=False).returncode == -31
