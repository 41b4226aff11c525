"""What a checkout adds to the bare Debian tree, as the upper directory of an overlay."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import cache, enclosure
from .errors import MachineError
from .report import progress

_HERE = Path(__file__).parent
# The half of this directory that runs inside the machine.
_RUNNER = (_HERE / "__init__.py", _HERE / "channel.py", _HERE / "runner.py")
_SERVICE = _HERE / "boot-runner.service"

_INSTALL = """
tree=$1 layer=$2
mkdir "$layer/upper" "$layer/work" "$layer/merged"
mount -t overlay -o "lowerdir=$tree,upperdir=$layer/upper,workdir=$layer/work" machine "$layer/merged"
cp -a "$layer/add/." "$layer/merged/"
cd "$layer/merged"
mount -t proc proc proc
for deb in srv/*.deb; do
    [ -e "$deb" ] || continue
    DEBIAN_FRONTEND=noninteractive chroot . dpkg --install "/$deb"
done
systemctl --root=. --quiet enable boot-runner.service
# Files newer than these marks would make systemd rebuild its caches at every boot.
touch etc/.updated var/.updated
umount proc
cd /
umount "$layer/merged"
rm -r "$layer/work" "$layer/merged" "$layer/add"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The files that a checkout brings into the machine."""

    packages: tuple[Path, ...] = ()
    tenders: Path | None = None
    guests: Path | None = None
    senders: Path | None = None

    def key(self) -> str:
        folders = (self.tenders, self.guests, self.senders)
        made = [path for folder in folders if folder for path in _programs(folder)]
        files = [*self.packages, *made, *_RUNNER, _SERVICE]
        return cache.digest(_INSTALL, *(part for file in files for part in (file.name, cache.file_digest(file))))


def layer(tree: Path, contents: Contents) -> Path:
    """Return the directory to lay over *tree*, made if it is not cached."""

    def make(target: Path) -> None:
        progress("installing this checkout's package, tenders and guests …")
        _gather(contents, target / "add")
        enclosure.run(_INSTALL, tree, target, doing="installing the checkout into the machine")

    return cache.entry("layer", cache.digest(cache.identity(tree), contents.key()), make) / "upper"


def _gather(contents: Contents, root: Path) -> None:
    runner = root / "usr/lib/test-machine/bootlib"
    runner.mkdir(parents=True)
    for file in _RUNNER:
        shutil.copy(file, runner)
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    shutil.copy(_SERVICE, units)
    (root / "srv").mkdir()
    for package in contents.packages:
        shutil.copy(package, root / "srv" / package.name)
    programs = "usr/local/bin"
    for folder, place in ((contents.tenders, programs), (contents.senders, programs), (contents.guests, "srv/guests")):
        if folder:
            (root / place).mkdir(parents=True, exist_ok=True)
            for program in _programs(folder):
                shutil.copy(program, root / place)


def _programs(folder: Path) -> list[Path]:
    """What make built there, without the objects that it built it from."""
    return sorted(path for path in folder.iterdir() if path.is_file())


def made(source: Path) -> Path:
    """Return the directory into which ``make -C SOURCE OUT=…`` built the programs of *source*.

    Raises:
        MachineError: make failed; its last lines are in the message.
    """
    files = sorted(path for path in source.rglob("*") if path.is_file())
    names = (part for path in files for part in (str(path.relative_to(source)), cache.file_digest(path)))

    def make(target: Path) -> None:
        progress(f"building {source.name} …")
        done = subprocess.run(
            ["make", "--silent", f"--directory={source}", f"OUT={target}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise MachineError(f"make in {source} failed:\n" + "\n".join(done.stdout.splitlines()[-20:]))

    return cache.entry(source.name, cache.digest(*names), make)
