"""The options of `solo5ctl run` as a workload. Imported where one is made, for startup time."""

import os
import re
from argparse import Namespace
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import NetworkName, TaskName, UnitKind, task_name
from solo5_systemd.task.option_table import SETTINGS
from solo5_systemd.task.quantities import value_of
from solo5_systemd.task.settings import Parse, Values, workload
from solo5_systemd.task.workload import Workload

T = TypeVar("T")


def workload_of(arguments: Namespace) -> Workload:
    """Return the workload that a command line describes.

    Raises:
        InvalidRequestError: an option is invalid, or has no effect.
    """
    name = arguments.declare or arguments.name or derived_name(arguments.Image, os.urandom(2).hex())
    found = workload(name, Given(arguments), _served)
    if found.idle_stops and not arguments.declare:
        raise InvalidRequestError(
            "--idle-action stop is for declared tasks: expected sleep, since no unit file would start it again.",
            f"Declare it: solo5ctl run --declare {name} --idle-action stop …",
        )
    return replace(found, kind=UnitKind.SCOPE) if arguments.scope else found


def derived_name(image: str, suffix: str) -> TaskName:
    """Return the default task name: the file name's stem and a suffix that makes it unique."""
    stem = image.rpartition("/")[2].partition(".")[0]
    usable = re.sub(r"[^A-Za-z0-9_-]+", "-", stem, flags=re.ASCII).lstrip("-_")[:64]
    return task_name(f"{usable or 'unikernel'}-{suffix}")


def _served() -> Collection[NetworkName]:
    """Return the networks with a DHCP server: read only where an option may reach the guest by DHCP alone."""
    from solo5_systemd.settings.files import read_settings

    return read_settings().served


class Given(Values):
    """The texts that argparse has found. A destination is a setting's name."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments

    def given(self, name: str) -> bool:
        """Return whether an option is given."""
        return bool(getattr(self._arguments, name, None))

    def parsed(self, name: str, parse: Parse[T]) -> Iterator[T]:
        """Yield the values of an option; raises as `parse`."""
        found = getattr(self._arguments, name, None)
        texts = [found] if isinstance(found, str) else found or ()
        return (value_of(parse, text, self.shown(name)) for text in texts)

    def shown(self, name: str) -> str:
        """Return the option."""
        return SETTINGS[name].option

    def path(self, text: str) -> str:
        """Return an absolute path: lexical, since Path.resolve() would follow symbolic links."""
        return os.path.abspath(text)  # noqa: PTH100
