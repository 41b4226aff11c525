"""Declared tasks in tests: their files, and all that a start leaves on purpose."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.machine.conftest import GUESTS, inspect, ok, sh, sync_journal, systemctl

ETC = Path("/etc/solo5")
DIRECTORY = Path("/run/solo5/declared")


class Declarations:
    """Writes files of tasks, and has PID 1 read them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def write(self, name: str, text: str) -> Path:
        """Write a file; PID 1 has not read it yet."""
        path = ETC / f"{name}.unikernel"
        path.write_text(text)
        if name not in self.names:
            self.names.append(name)
        return path

    def __call__(self, name: str, lines: str, *, image: str = "net.spt", rest: str = "") -> str:
        """Declare a task of a test guest; `lines` are of [Unikernel], `rest` further sections. Return its unit."""
        self.write(name, f"[Unikernel]\nImage={GUESTS}/{image}\n{lines}\n{rest}\n")
        systemctl("daemon-reload")
        return f"{name}.service"

    def remove(self) -> None:
        """Stop the tasks, and remove their files with what a reboot would find again."""
        names = list(dict.fromkeys(each for name in self.names for each in (*_instances(name), name)))
        if not names:
            return
        units = [f"{name}.service" for name in names]
        tasks = [name for name in names if not name.endswith("@")]
        for link in (each for unit in units for each in Path("/etc/systemd/system").rglob(unit) if each.is_symlink()):
            link.unlink()  # as `systemctl disable` and `unmask` do, each with a daemon-reload
        if tasks:
            sh("systemctl", "stop", *(f"{each}{name}.service" for name in tasks for each in ("", "solo5-update@")))
            sh("solo5ctl", "rm", "--force", *tasks)
            # Of those that failed early.
            sh("systemctl", "stop", *(f"solo5-outcome-declared@{name}.target" for name in tasks))
        for name in names:
            (ETC / f"{name}.unikernel").unlink(missing_ok=True)
            shutil.rmtree(ETC / f"{name}.unikernel.d", ignore_errors=True)
            shutil.rmtree(f"/etc/systemd/system/{name}.service.d", ignore_errors=True)
            for directory in ("declared", "waiting"):
                Path(f"/var/lib/solo5/{directory}/{name}.json").unlink(missing_ok=True)
            shutil.rmtree(f"/var/lib/solo5/previous/{name}", ignore_errors=True)
            Path(f"/var/lib/solo5/previous/{name}.json").unlink(missing_ok=True)
        systemctl("daemon-reload")
        sh("systemctl", "reset-failed", *(f"{each}{name}.service" for name in names for each in ("", "solo5-prepare@")))
        for name in names:
            if name.endswith("@"):
                stop_awaited(name)
        self.names = []


def _instances(name: str) -> list[str]:
    """The instances of a template that were started, or have drop-ins; those whose name is refused leave nothing."""
    if not name.endswith("@"):
        return []
    places = (DIRECTORY, ETC, Path("/var/lib/solo5/declared"))
    found = [path.name.removesuffix(".d") for place in places for path in place.glob(f"{name}?*")]
    outcomes = systemctl("list-units", "--all", "--plain", "--no-legend", f"solo5-outcome-declared@{name}*")
    found += [line.split()[0].partition("@")[2].removesuffix(".target") for line in outcomes.splitlines()]
    return sorted({each.removesuffix(".unikernel").removesuffix(".json") for each in found} - {name})


def stop_awaited(template: str) -> None:
    """Stop the targets that starts of instances which failed have left: PID 1 does so at its next daemon-reload."""
    listed = systemctl("list-units", "--all", "--plain", "--no-legend", f"solo5-awaited-{template}*")
    for line in listed.splitlines():
        sh("systemctl", "stop", line.split()[0])


@contextmanager
def declarations() -> Iterator[Declarations]:
    """The files of tasks, removed with the tasks at the end."""
    made = Declarations()
    try:
        yield made
    finally:
        made.remove()


def main_pid(unit: str) -> str:
    return ok("systemctl", "show", "--property=MainPID", "--value", unit).strip()


def status(unit: str) -> str:
    sync_journal()
    return sh("systemctl", "status", "--no-pager", "--full", unit).stdout


def journal(unit: str) -> str:
    sync_journal()
    return ok("journalctl", "--quiet", "--no-pager", "--boot", "--output=cat", "--unit", unit)


def identity(name: str = "web") -> tuple[str, ...]:
    """What a task keeps: address, MAC and tap of its NIC."""
    [nic] = inspect(name)["nics"]
    return nic["ipv4"], nic["mac"], nic["tap"]
