"""Debian trees, each made once with mmdebstrap and never changed afterwards."""

import shlex
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from . import apt, cache
from .errors import MachineError
from .report import progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A tree's name, its packages beyond Debian's essential ones, and a shell script that runs in it at the end."""

    name: str
    packages: tuple[str, ...]
    seconds: int  # told to the person waiting; measured on two cores with a near mirror
    finish: Path | None = None


MACHINE = Recipe(
    name="machine",
    seconds=60,
    packages=(
        "systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "psmisc", "less", "strace",
        "linux-image-cloud-amd64", "tiny-initramfs", "busybox-static",
        "nftables", "iproute2", "iputils-ping", "ethtool", "conntrack", "tcpdump",
        "socat", "curl", "netcat-openbsd", "ca-certificates", "libseccomp2",
        "bash-completion", "zsh",
        "python3", "python3-dbus-next", "python3-pyroute2", "python3-nftables", "python3-pystemd",
        "python3-pyelftools", "python3-grpcio", "python3-msgpack", "python3-protobuf",
        "python3-pytest", "python3-pytest-timeout", "python3-pytest-asyncio",
    ),
    finish=Path(__file__).parent / "finish-machine.sh",
)  # fmt: skip

BUILD = Recipe(
    name="build",
    seconds=60,
    packages=(
        "dpkg-dev", "debhelper", "dh-python", "pybuild-plugin-pyproject", "python3-all", "python3-setuptools",
        "libprotobuf-dev", "protobuf-compiler", "python3-grpcio", "python3-msgpack", "python3-protobuf",
        "python3-dbus-next", "python3-pyroute2", "python3-nftables", "python3-pystemd", "python3-pyelftools",
        "lintian", "fakeroot",
    ),
)  # fmt: skip

GO = Recipe(name="go", packages=("golang-go", "ca-certificates"), seconds=60)

EMULATOR = Recipe(name="emulator", seconds=40, packages=("qemu-system-x86", "qemu-utils", "seabios"))


def tree(recipe: Recipe, release: str) -> Path:
    """Return the tree of *recipe*, made if it is not cached.

    Raises:
        MachineError: mmdebstrap or the finishing script failed; its last lines are in the message.
    """
    key = cache.digest(release, *recipe.packages, recipe.finish.read_text() if recipe.finish else "")
    return cache.entry(recipe.name, key, lambda target: _make(recipe, release, target))


def _make(recipe: Recipe, release: str, target: Path) -> None:
    sources = apt.debian_sources(apt.configured_sources(), apt.host_codename(), release)
    progress(f"building the Debian tree “{recipe.name}” (once, about {recipe.seconds} s) …")
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("w", suffix=".list") as listed:
        listed.write(sources)
        listed.flush()
        _mmdebstrap(recipe, release, Path(listed.name), target)
    progress(f"… “{recipe.name}” took {time.monotonic() - began:.0f} s")


def _mmdebstrap(recipe: Recipe, release: str, sources: Path, target: Path) -> None:
    options = [f"--aptopt={option}" for option in (*apt.carried_options(), 'Acquire::Languages "none"')]
    if recipe.finish:
        options.append(f'--customize-hook=chroot "$1" sh -eu < {shlex.quote(str(recipe.finish))}')
    done = subprocess.run(
        [
            "mmdebstrap", "--variant=apt", "--mode=root", *options,
            "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
            f"--include={','.join(recipe.packages)}",
            release, str(target), str(sources),
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise MachineError(f"mmdebstrap of {release} for “{recipe.name}” failed:\n{tail}")
