"""Debian trees, each made once with mmdebstrap and never changed afterwards."""

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import apt, cache, enclosure
from .report import lasting


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A tree's name, its packages beyond Debian's essential ones, and shell scripts that run in it at the end."""

    name: str
    packages: tuple[str, ...]
    seconds: int  # told to the person waiting; measured on two cores with a near mirror
    finish: tuple[Path, ...] = ()


MACHINE = Recipe(
    name="machine",
    seconds=60,
    packages=(
        "systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "psmisc", "less", "strace",
        "linux-image-cloud-amd64", "tiny-initramfs", "busybox-static",
        "nftables", "dnsmasq-base", "iproute2", "iputils-ping", "ethtool", "conntrack", "tcpdump",
        "socat", "curl", "netcat-openbsd", "ca-certificates", "libseccomp2", "libnss-systemd",
        "bash-completion", "zsh", "containernetworking-plugins", "iptables", "haproxy", "openssh-server",
        "python3", "python3-dbus-fast", "python3-dbus-next", "python3-pyroute2", "python3-nftables", "python3-pystemd",
        "python3-grpcio", "python3-msgpack", "python3-protobuf",
        "python3-pytest", "python3-pytest-timeout", "python3-pytest-asyncio",
    ),
    finish=(Path(__file__).parent / "finish-machine.sh",),
)  # fmt: skip

# Other programs that change links, addresses and the packet filter: installed, and none of them starts by itself.
BESIDE = replace(
    MACHINE,
    name="beside",
    seconds=120,
    packages=(
        *MACHINE.packages,
        "docker.io", "firewalld", "ufw", "iptables", "network-manager",
        "libvirt-daemon-driver-network", "libvirt-daemon-config-network", "libvirt-clients", "dnsmasq-base",
        "podman", "crun", "netavark",
    ),
    finish=(*MACHINE.finish, Path(__file__).parent / "finish-beside.sh"),
)  # fmt: skip

BUILD = Recipe(
    name="build",
    seconds=60,
    packages=(
        "dpkg-dev", "debhelper", "dh-python", "pybuild-plugin-pyproject", "python3-all", "python3-setuptools",
        "libprotobuf-dev", "protobuf-compiler", "python3-grpcio", "python3-msgpack", "python3-protobuf",
        "python3-dbus-next", "python3-pyroute2", "python3-nftables", "python3-pystemd",
        "gcc", "libc6-dev", "lintian", "fakeroot",
    ),
)  # fmt: skip

GO = Recipe(name="go", packages=("golang-go", "ca-certificates"), seconds=60)

# What a fresh machine has besides Debian's essential packages; all else is to come from the set-up.
BARE = Recipe(name="bare", packages=("git", "make"), seconds=90, finish=(Path(__file__).parents[2] / "machine/setup",))

EMULATOR = Recipe(name="emulator", seconds=40, packages=("qemu-system-x86", "qemu-utils", "seabios"))


def equipped(packages: Sequence[str]) -> Recipe:
    """Return the recipe of the machine, with more packages."""
    return replace(MACHINE, name="equipped", packages=(*MACHINE.packages, *packages)) if packages else MACHINE


def tree(recipe: Recipe, release: str) -> Path:
    """Return the tree of *recipe*, made if it is not cached.

    Raises:
        MachineError: mmdebstrap or the finishing script failed; its last lines are in the message.
    """
    key = cache.digest(release, *recipe.packages, *[script.read_text() for script in recipe.finish] or [""])
    return cache.entry(recipe.name, key, lambda target: _make(recipe, release, target))


def _make(recipe: Recipe, release: str, target: Path) -> None:
    sources = apt.debian_sources(apt.configured_sources(), apt.host_codename(), release)
    what = f"making the Debian tree “{recipe.name}” of {release}"
    with lasting(what, recipe.seconds), tempfile.NamedTemporaryFile("w", suffix=".list") as listed:
        listed.write(sources)
        listed.flush()
        _mmdebstrap(recipe, release, Path(listed.name), target)


def _bring_keyring() -> str:
    """Return the hook for a tree whose own apt is to read our sources: the keyring's name differs between releases."""
    keyring = shlex.quote(str(apt.debian_keyring()))
    return f'[ -e "$1"{keyring} ] || cp --dereference {keyring} "$1"{keyring}'


def _mmdebstrap(recipe: Recipe, release: str, sources: Path, target: Path) -> None:
    options = [f"--aptopt={option}" for option in (*apt.carried_options(), 'Acquire::Languages "none"')]
    if recipe.finish:
        options.append(f"--customize-hook={_bring_keyring()}")
    options += [f'--customize-hook=chroot "$1" sh -eu < {shlex.quote(str(script))}' for script in recipe.finish]
    enclosure.run(
        'exec mmdebstrap "$@"',
        "--variant=apt", "--mode=root", *options,
        "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=force-unsafe-io",  # a tree that is half made is not used: dpkg need not wait for the disk
        f"--include={','.join(recipe.packages)}",
        release, target, sources,
        doing=f"mmdebstrap of {release} for “{recipe.name}”",
    )  # fmt: skip
