"""The Nomad agent that the driver is tested under, and a client of the driver's wire; both are one Go module.

They are built in a Debian tree of their own, whose Go fetches the toolchain that go.mod names. Where modules come from
and how they are checked is this machine's configuration: its environment, and `go env` where it has a Go.
"""

import json
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

from . import cache, enclosure, trees
from .errors import MachineError
from .report import lasting
from .session import Copy

SOURCE = Path(__file__).resolve().parents[3] / "tests/support/agent"
_RELEASE = "trixie"  # the oldest Debian whose Go fetches toolchains; static programs run on any
_ASKED = ("GOPROXY", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOINSECURE", "GOAUTH")
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")

# /mnt is the module, /srv/modules and /srv/objects are what Go keeps, /media gets the program.
_BUILD = """
tree=$1 source=$2 kept=$3 target=$4 authorities=$5
shift 5
mkdir "$target/upper" "$target/work" "$target/merged"
mount -t overlay -o "lowerdir=$tree,upperdir=$target/upper,workdir=$target/work" build "$target/merged"
cd "$target/merged"
cp --dereference /etc/resolv.conf /etc/hosts etc
[ ! -e "$authorities" ] || cp "$authorities" etc/ssl/certs/ca-certificates.crt
mount -t proc proc proc
mount --rbind /dev dev
mount --bind "$source" mnt
mount --bind "$kept" srv
mount --bind "$target" media
export HOME=/root SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt SSL_CERT_DIR=/etc/ssl/certs
export GOTOOLCHAIN=auto GOMODCACHE=/srv/modules GOCACHE=/srv/objects CGO_ENABLED=0
export GOFLAGS="-mod=readonly -modcacherw -buildvcs=false -trimpath"
chroot . sh -euc 'cd /mnt; exec env "$@"' sh "$@"
cd /
umount -R "$target/merged"
rm -r "$target/upper" "$target/work" "$target/merged"
"""

_GO_BUILD = ("go", "build", "-ldflags=-s -w")
_NOMAD = (*_GO_BUILD, "-tags=hashicorpmetrics", "-o=/media/nomad", "github.com/hashicorp/nomad")
_NOMAD_SECONDS = 300  # told to the person waiting; on two cores
_CLIENT = (*_GO_BUILD, "-o=/media/driver-client", "./client")
_CLIENT_SECONDS = 10


def copies() -> list[Copy]:
    """Return what goes into the machine, built if it is not cached.

    It is ``nomad`` and ``driver-client``. With NOMAD=FILE in the environment, that program is the agent.

    Raises:
        MachineError: NOMAD names no program.
    """
    programs = {"driver-client": _client(), "nomad": _agent()}
    return [Copy(host=program, guest=Path("/usr/local/bin", name)) for name, program in programs.items()]


def _agent() -> Path:
    if not (given := os.environ.get("NOMAD")):
        key = cache.digest(_BUILD, *_NOMAD, *_module())
        make = partial(_build, words=_NOMAD, what="the Nomad agent", seconds=_NOMAD_SECONDS)
        return cache.entry("agent", key, make) / "nomad"
    if not os.access(given, os.X_OK) or Path(given).is_dir():
        raise MachineError(f"NOMAD={given} is no program: expected the path of a Nomad agent")
    return Path(given).resolve()


def _client() -> Path:
    sources = sorted((SOURCE / "client").rglob("*.go"))
    named = (part for path in sources for part in (str(path.relative_to(SOURCE)), cache.file_digest(path)))
    key = cache.digest(_BUILD, *_CLIENT, *_module(), *named)
    make = partial(_build, words=_CLIENT, what="the driver's client", seconds=_CLIENT_SECONDS)
    return cache.entry("client", key, make) / "driver-client"


def _module() -> tuple[bytes, ...]:
    files = (SOURCE / "go.mod", SOURCE / "go.sum", *sorted((SOURCE / "clouds").rglob("*.*")))
    return tuple(cache.file_digest(file) for file in files)


def _build(target: Path, words: tuple[str, ...], what: str, seconds: int) -> None:
    tree = trees.tree(trees.GO, _RELEASE)
    kept = cache.entry("modules", cache.digest(tree.name, *_module()), lambda _: None)
    trusted = os.environ.get("SSL_CERT_FILE", _AUTHORITIES)
    with cache.in_use(tree, kept), lasting(f"building {what}", seconds):
        enclosure.run(
            _BUILD, tree, SOURCE, kept, target, trusted, *_settings(), *words,
            doing=f"building {words[-1]}",
        )  # fmt: skip


def _settings() -> list[str]:
    """This machine's own settings of Go for where modules come from; what the environment says comes along anyhow."""
    if not shutil.which("go"):
        return []
    asked = subprocess.run(["go", "env", "-json", *_ASKED], capture_output=True, text=True, check=True)
    return [f"{name}={value}" for name, value in json.loads(asked.stdout).items() if value]
