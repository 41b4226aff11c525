"""solo5-networkd with the directories of a test.

    python3 -m tests.contract.placed CHANGE DIRECTORY [OPTION …]

CHANGE is Python, which is executed before the service.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from solo5_systemd.bus import network_reader
from solo5_systemd.network import lease_files, remembered_addresses
from solo5_systemd.settings import files


def of_clients(directory: Path) -> Sequence[tuple[ModuleType, str, Any]]:
    """Return what a client reads below a directory: modules with the names and values of their constants."""
    return (
        (lease_files, "STATE", directory / "state"),
        (network_reader, "STATE", str(directory / "state")),
        (remembered_addresses, "ADDRESSES", directory / "addresses"),
    )


def place(words: Sequence[str]) -> None:
    """Set the constants of the service by the words of a command line before those of a program."""
    from solo5_systemd.network import nft_tables
    from solo5_systemd.networkd import main, maintenance, task_units

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--idle", type=float, default=main.IDLE_TIMEOUT_S)
    parser.add_argument("--shared-tables", action="store_true", help="without an owner, as with Linux before 6.9")
    parser.add_argument("--units", help="PID 1's links")
    parser.add_argument("--poll", type=float, default=maintenance.UNWATCHED_CHECK_INTERVAL_S)
    options = parser.parse_args(words)
    constants: list[tuple[ModuleType, str, Any]] = [
        *of_clients(options.directory),
        (files, "ETC", options.directory / "etc"),
        (task_units, "UNITS", options.units or str(options.directory / "units")),
        (task_units, "FIFOS", options.directory / "waiting"),
        (main, "OWNER", "nobody"),
        (main, "IDLE_TIMEOUT_S", options.idle),
        (maintenance, "UNWATCHED_CHECK_INTERVAL_S", options.poll),
    ]
    if options.shared_tables:
        constants.append((nft_tables, "_OWNED_PROBE", "refused"))
    for module, name, value in constants:
        setattr(module, name, value)


if __name__ == "__main__":
    from solo5_systemd.dbus.process import run_module

    place(sys.argv[2:])
    exec(compile(sys.argv[1], "<change>", "exec"), {"__name__": "<change>"})
    sys.argv = ["solo5-networkd"]
    sys.exit(run_module("solo5_systemd.networkd.main"))
