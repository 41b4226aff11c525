"""The command line of ``boot``."""

import argparse
import re
import sys
from pathlib import Path

from .session import Copy

_DESCRIPTION = """\
Boot a throw-away Debian machine with this checkout's package, the stand-in tenders (/usr/local/bin), the guests
(/srv/guests) and the tests (/srv/tests) in it, and run COMMAND there as root, in /srv/tests, with no standard input.
Its output is passed on as it comes, stdout and stderr apart. Nothing of the machine is left afterwards.
"""
_EPILOG = """\
The exit status is COMMAND's own; 124 if it took longer than --timeout, 125 if the machine could not be made or booted
or ended before COMMAND did, 126 and 127 if COMMAND could not be executed or found, 128+N if signal N ended either.

examples:
  tests/machine/boot -- systemctl status solo5.slice
  tests/machine/boot --backend container -- python3 -m pytest machine/test_run.py
  tests/machine/boot --shell
"""

_NAME = re.compile("[a-z][a-z0-9]{0,9}")  # the name of an interface, vb-NAME, has 15 characters at most


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="boot",
        usage="%(prog)s [OPTION]… -- COMMAND [ARGUMENT]…",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_machine(parser.add_argument_group("the machine"))
    _add_use(parser.add_argument_group("its use"))
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="what to run; a program and its arguments")
    arguments = parser.parse_args(words)
    if not arguments.command and not arguments.shell and not arguments.prepare:
        parser.error("COMMAND is missing; --shell opens a shell instead, and --prepare boots nothing")
    if arguments.prepare and (arguments.command or arguments.shell):
        parser.error("--prepare boots nothing: leave COMMAND and --shell out")
    if "beside" in arguments.extras and arguments.packages:
        parser.error("--with beside is a tree of its own: leave --packages out")
    if arguments.machines and (arguments.backend != "container" or arguments.shell):
        parser.error("--machines needs --backend container, and a COMMAND instead of --shell")
    if arguments.reboot and arguments.backend != "vm":
        parser.error("--reboot needs --backend vm: a container ends with its PID 1")
    if arguments.shell and not sys.stdin.isatty():
        parser.error("--shell needs a terminal as standard input; give a COMMAND instead")
    return arguments


def _add_machine(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--backend", choices=("vm", "container"), default="vm",
        help="vm: QEMU, a kernel of its own; container: systemd-nspawn, this kernel at native speed (default: vm)",
    )  # fmt: skip
    group.add_argument("--release", default="trixie", help="Debian release (default: trixie)")
    group.add_argument("--memory", type=_at_least(512), default=2048, metavar="MIB", help="of the vm (default: 2048)")
    group.add_argument("--cpus", type=_at_least(1), default=2, metavar="N", help="of the vm (default: 2)")
    group.add_argument(
        "--machines", type=_names, default=[], metavar="NAME,NAME…",
        help="containers on a link of their own; COMMAND runs in the first, with /run/host-control for the others",
    )  # fmt: skip
    group.add_argument("--bare", action="store_true", help="leave this checkout's package out")
    group.add_argument(
        "--with", dest="extras", choices=("nomad", "beside"), action="append", default=[],
        help="nomad: bring the Nomad agent and a client of its drivers (/usr/local/bin/nomad, driver-client); "
        "beside: Docker, podman, firewalld, ufw, libvirt and NetworkManager, none of them started",
    )  # fmt: skip
    group.add_argument(
        "--packages", type=lambda text: text.split(","), default=[], metavar="NAME,NAME…",
        help="Debian packages that the machine has besides; another tree, cached like the machine's own",
    )  # fmt: skip
    group.add_argument("--prepare", action="store_true", help="make what the machine is made of, and boot nothing")


def _add_use(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--copy", type=_copy_in, action="append", default=[], metavar="HOST:GUEST",
        help="copy a file or directory to the absolute path GUEST before COMMAND runs; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--copy-out", type=_copy_out, action="append", default=[], metavar="GUEST:HOST",
        help="copy a file or directory out after COMMAND, whatever its status; HOST is the copy's own path; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="for COMMAND and the copies, not for making and booting the machine",
    )
    group.add_argument(
        "--reboot", action="store_true",
        help="boot the vm again, with its disk, and run COMMAND again, as often as that ends with status 75",
    )  # fmt: skip
    group.add_argument(
        "--shell", action="store_true", help="open a root shell in the machine afterwards, or instead of COMMAND"
    )


def _at_least(least: int) -> "type[int]":
    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is too little; {least} is the least")
        return value

    return number  # type: ignore[return-value]  # argparse takes any callable, its stubs want a type here


def _names(text: str) -> list[str]:
    names = text.split(",")
    if len(names) < 2 or len(set(names)) < len(names) or not all(_NAME.fullmatch(name) for name in names):
        raise argparse.ArgumentTypeError(f"“{text}” is no list of two or more names of 1 to 10 letters and digits")
    return names


def _copy_in(text: str) -> Copy:
    host, _, guest = text.rpartition(":")
    if not host or not guest.startswith("/"):
        raise argparse.ArgumentTypeError(f"“{text}” is not HOST:GUEST with an absolute GUEST")
    if not Path(host).exists():
        raise argparse.ArgumentTypeError(f"{host} does not exist")
    return Copy(host=Path(host), guest=Path(guest))


def _copy_out(text: str) -> Copy:
    guest, _, host = text.partition(":")
    if not host or not guest.startswith("/"):
        raise argparse.ArgumentTypeError(f"“{text}” is not GUEST:HOST with an absolute GUEST")
    return Copy(host=Path(host), guest=Path(guest))
