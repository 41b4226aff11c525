"""Where this machine gets Debian from: its own apt configuration, asked through apt itself."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import MachineError

# Installed by Debian's package debian-archive-keyring; its name changed with Debian 13.
_KEYRINGS = tuple(Path(f"/usr/share/keyrings/debian-archive-keyring.{end}") for end in ("pgp", "gpg"))
_FIELDS = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
# Settings without which some networks cannot be crossed or some mirrors cannot be used.
_CARRIED = ("Acquire::http", "Acquire::https", "Acquire::Check-Valid-Until", "Acquire::Retries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One archive this machine uses: a URI and the release it is asked for, such as ``bookworm-security``."""

    uri: str
    release: str


def configured_sources() -> list[Source]:
    """Return the ``main`` archives of this machine, in the order of its configuration.

    Raises:
        MachineError: apt has no package lists, as in an image where they were deleted, and cannot download them.
    """
    rows = _indexes()
    if not rows:
        _update()
        rows = _indexes()
    return list(dict.fromkeys(Source(uri=uri, release=rel) for uri, rel, component in rows if component == "main"))


def _indexes() -> list[list[str]]:
    targets = _output("apt-get", "indextargets", "--format", _FIELDS, "Created-By: Packages")
    return [line.split("|") for line in targets.splitlines()]


def _update() -> None:
    done = subprocess.run(["apt-get", "update"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise MachineError(f"apt-get update failed: {done.stderr.strip()}")


def debian_sources(sources: list[Source], host: str, wanted: str) -> str:
    """Return one-line apt sources for the release *wanted*, from those of a *host* of another release.

    Raises:
        MachineError: none of the sources is Debian's main archive for the host's release.
    """
    found = {
        suffix: source.uri
        for suffix in ("", "-updates", "-security")
        for source in sources
        if source.release in (host + suffix, wanted + suffix, "stable" + suffix)
    }
    if "" not in found:
        raise MachineError(
            f"no source of apt on this machine is Debian's archive for {host} main; "
            "add one to /etc/apt/sources.list.d, or set the release with --release"
        )
    keyring = debian_keyring()
    return "".join(f"deb [signed-by={keyring}] {uri} {wanted}{suffix} main\n" for suffix, uri in found.items())


def debian_keyring() -> Path:
    for path in _KEYRINGS:
        if path.exists():
            return path
    raise MachineError("Debian's archive keys are missing; install the package debian-archive-keyring")


def carried_options() -> list[str]:
    """Return apt's proxy and acquire settings of this machine, to be used inside the trees as well."""
    dump = _output("apt-config", "dump", *_CARRIED, "--format", '%F "%v";%n')
    return [line for line in dump.splitlines() if not line.endswith('"";')]


def host_codename() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    raise MachineError("this machine's /etc/os-release names no Debian release; Debian 12 or 13 is expected")


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
