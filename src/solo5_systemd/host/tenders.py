"""Tenders: their search path, the ABI version of each, its groups for device nodes, and how a process becomes one."""

import asyncio
import grp
import os
import re
import resource
import signal
import stat
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from solo5_systemd.base import paths
from solo5_systemd.base.concurrency import reaped
from solo5_systemd.base.dependencies import advice
from solo5_systemd.base.errors import HostError, ImageError, NotFoundError, host_errors
from solo5_systemd.base.names import Target
from solo5_systemd.base.own_files import check_own
from solo5_systemd.host.tender_libraries import UnknownFilesError, mapped_files
from solo5_systemd.image.manifest import ABI_VERSION
from solo5_systemd.unit.confinement import KVM, ROOT, TUN, USER
from solo5_systemd.unit.tender import LAUNCHER, LIBRARIES, Tender

ADVICE = {
    KVM: "Load the module (modprobe kvm_intel or kvm_amd), or run an spt image.",
    TUN: "Load the module: modprobe tun",
}


def groups_for(target: Target, *, nics: bool) -> tuple[str, ...]:
    """Return the supplementary groups that a task needs for its device nodes.

    Raises:
        HostError: a node is missing, or only root may open it.
    """
    nodes = ([KVM] if target is Target.HVT else []) + ([TUN] if nics else [])
    groups = (_group_for(node) for node in nodes)
    return tuple(dict.fromkeys(group for group in groups if group is not None))


def _group_for(node: str) -> str | None:
    try:
        status = os.stat(node)  # noqa: PTH116 - a device node, no path work
    except OSError as error:
        raise HostError(f"{node} does not exist: expected the device node.", ADVICE[node]) from error
    if not stat.S_ISCHR(status.st_mode):
        raise HostError(f"{node} is not a character device.", ADVICE[node])
    if status.st_mode & 0o006 == 0o006:
        return None
    if status.st_mode & 0o060 == 0o060 and status.st_gid != 0:  # in group root, a tender could open other files
        try:
            return grp.getgrgid(status.st_gid).gr_name
        except KeyError as error:
            raise HostError(
                f"{node} belongs to group {status.st_gid}, which has no name: expected a group in the group database.",
                f"groupadd --system --gid {status.st_gid} {node.rpartition('/')[2]}",
            ) from error
    raise HostError(
        f"{node} has mode {stat.S_IMODE(status.st_mode):04o} and group {status.st_gid}: "
        f"expected a group through which user {USER} can read and write it.",
        f"chgrp kvm {node} && chmod 0660 {node}" if node == KVM else f"chmod 0666 {node}",
    )


FSTAB = Path("/etc/fstab")

VERSION_CACHE = Path("/run/solo5/tenders")
"""The cache of tender versions: a symbolic link for each program file, whose target is the output of `--version`."""

VERSION_TIMEOUT_S = 10.0
"""A tender needs one millisecond, or a few seconds from a disk that is busy with a boot."""

_VERSION = re.compile(r"\bversion (\S+)")
_ABI = re.compile(r"^ABI version ([0-9]+)$", re.MULTILINE)


class TenderPath:
    """The search path of tenders."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories

    async def security_modules(self) -> Collection[str]:
        """Return those of `apparmor` and `selinux` that are enabled, by the files that systemd checks."""
        found = []
        with suppress(OSError):
            if (paths.SYS / "module/apparmor/parameters/enabled").read_bytes() == b"Y\n":
                found.append("apparmor")
        if (paths.SYS / "fs/selinux/status").exists():
            found.append("selinux")
        return found

    async def find(self, target: Target) -> Tender:
        """Return the first tender of this target with the ABI of images, and make the root directory of tasks.

        Raises:
            NotFoundError: the search path has no tender of this target.
            ImageError: all tenders of this target have another ABI version.
            SettingsError: as of `all`.
        """
        seen: list[Tender] = []
        async for tender in self.all(target):
            if tender.abi_version == ABI_VERSION:
                with suppress(OSError):  # it is there already; or else the unit fails with systemd's own error
                    Path(ROOT).mkdir(parents=True)  # systemd makes the mount points in it
                    Path(ROOT).chmod(0o755)  # mkdir(2) applies the umask, and tenders are not root
                return tender
            seen.append(tender)
        if not seen:
            raise NotFoundError(
                f"solo5-{target} is not in {', '.join(self._directories)}: expected the tender there.",
                "Install Solo5, or add its directory to tender_paths in /etc/solo5.",
            )
        found = ", ".join(f"{tender.path} (ABI {tender.abi_version})" for tender in seen)
        raise ImageError(f"the image needs solo5-{target} with ABI version {ABI_VERSION}: found only {found}.")

    def expected(self, target: Target, why: str) -> Tender:
        """Return a tender that was not found, where it is most likely once all file systems are mounted (fstab(5))."""
        mounts: list[str] = []
        with suppress(OSError):
            lines = (line.split() for line in FSTAB.read_text(encoding="utf-8", errors="replace").splitlines())
            mounts = [words[1] for words in lines if words[1:] and words[0][0] != "#" and not os.path.ismount(words[1])]
        later = [path for path in self._directories if any(Path(path).is_relative_to(mount) for mount in mounts)]
        missing = [path for path in self._directories if not Path(path).is_dir()]
        return Tender(
            path=f"{[*later, *missing, *self._directories][0]}/solo5-{target}",
            target=target,
            version="unknown",
            abi_version=ABI_VERSION,
            loads=LIBRARIES,
            loads_because=why,
        )

    async def groups(self, target: Target, *, nics: bool) -> Sequence[str]:
        """Return the supplementary groups for the device nodes of a task; see `groups_for`."""
        return groups_for(target, nics=nics)

    async def all(self, target: Target) -> AsyncGenerator[Tender, None]:
        """Yield all tenders of this target in the search path, one of each directory.

        Raises:
            SettingsError: users other than root may change one, or which file it is: root executes it.
        """
        for directory in self._directories:
            path = Path(directory, f"solo5-{target}")
            if path.is_file() and os.access(path, os.X_OK):
                check_own(path)
                if tender := await self._query(path, target):
                    yield tender

    async def _query(self, path: Path, target: Target) -> Tender | None:
        memo = VERSION_CACHE / paths.version_of(path.stat())
        try:
            loads, because = mapped_files(str(path)), ""
        except UnknownFilesError as error:
            loads, because = LIBRARIES, str(error)
        try:
            output = os.readlink(memo)  # noqa: PTH115 - the target is text, not a path
        except OSError:
            for library in () if because else loads:
                check_own(Path(library))
            output = await _version(path)
            with suppress(OSError):  # only a cache: a read-only or full /run must not fail the start
                memo.parent.mkdir(parents=True, exist_ok=True)
                memo.symlink_to(output)
        version, abi = _VERSION.search(output), _ABI.search(output)
        if abi is None:  # no tender, or one of a Solo5 that states no ABI
            return None
        return Tender(
            path=str(path),
            target=target,
            version=version[1] if version else "unknown",
            abi_version=int(abi[1]),
            loads=loads,
            loads_because=because,
            launcher=LAUNCHER if os.access(LAUNCHER, os.X_OK) else "",
        )


async def _version(path: Path) -> str:
    """Return the output of `--version`, which tenders print to stderr, shortened to 1024 bytes."""
    with host_errors(f"{path} cannot be executed"):
        process = await asyncio.create_subprocess_exec(path, "--version", stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    try:
        async with reaped(process), asyncio.timeout(VERSION_TIMEOUT_S):
            _, output = await process.communicate()
    except TimeoutError as error:
        raise HostError(f"{path} --version did not answer within {VERSION_TIMEOUT_S:g} seconds.") from error
    return output[:1024].replace(b"\0", b"").decode("utf-8", "replace").strip() or "nothing"


IGNORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""The signals that Python ignores. A program inherits this through execve(2), and a tender that ignores SIGPIPE hangs
with a dead main thread when the reader of its console exits."""


def check_executable(program: str) -> None:
    """Check that a program can be executed by this user.

    Raises:
        NotFoundError: it cannot.
    """
    if not os.access(program, os.X_OK):
        raise _error(program, "no such program, or no permission")


def execute(line: Sequence[str]) -> NoReturn:
    """Replace this process by a command line, which writes no core file; the program is an absolute path.

    Raises:
        NotFoundError: execve(2) fails.
    """
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would contain the guest's memory
    try:
        os.execv(line[0], [*line])  # noqa: S606 - no shell is meant
    except OSError as error:
        raise _error(line[0], error.strerror or "") from error


def _error(program: str, reason: str) -> NotFoundError:
    return NotFoundError(f"{program} cannot be executed: {reason}.", advice(program))
