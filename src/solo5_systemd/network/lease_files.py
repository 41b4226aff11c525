"""What is held, on disk below /run: read by root, written by the network service alone."""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from solo5_systemd.decode import json_document
from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.names import NetworkName, TaskName
from solo5_systemd.network.lease_json import (
    holding_document,
    network_document,
    parse_holding,
    parse_network,
    parse_texts,
)
from solo5_systemd.network.model import Holding, Network

STATE = Path("/run/solo5/network")

_DAMAGED = ".damaged"
_log = logging.getLogger(__name__)
T = TypeVar("T")


def read_holdings(directory: Path = STATE) -> tuple[Holding, ...]:
    """What every task holds, in the order of their names; files that cannot be read are left out."""
    return tuple(_read(_files(directory / "tasks"), parse_holding))


def read_holding(task: TaskName, directory: Path = STATE) -> Holding | None:
    """What one task holds; None where that is nothing, or cannot be read."""
    return next(_read((directory / "tasks" / f"{task}.json",), parse_holding), None)


def read_networks(directory: Path = STATE) -> tuple[Network, ...]:
    """The networks in use, in the same way."""
    return tuple(_read(_files(directory / "networks"), parse_network))


def has_lease(task: TaskName, directory: Path = STATE) -> bool:
    """There is a file of what the task holds, readable or not."""
    return any((directory / "tasks" / f"{task}.json{end}").exists() for end in ("", _DAMAGED))


def is_readable(directory: Path = STATE) -> bool:
    """What is held can be listed by this process, or nothing is held."""
    try:
        with os.scandir(directory):
            return True
    except FileNotFoundError:
        return True
    except PermissionError:
        return False


def all_readable(directory: Path = STATE) -> bool:
    """No file has been set aside, or would be."""
    damage = list(directory.glob(f"*/*{_DAMAGED}"))

    def told(path: Path, _reason: str) -> None:
        damage.append(path)

    for _ in _read(_files(directory / "tasks"), parse_holding, told):
        pass
    for _ in _read(_files(directory / "networks"), parse_network, told):
        pass
    return not damage


class LeaseStore:
    """One file for each task and each network, and one for the kernel settings to be put back.

    Every write is whole or not at all. A file that cannot be read is set aside as NAME.damaged, and told of.
    """

    def __init__(self, directory: Path = STATE) -> None:
        self._tasks = directory / "tasks"
        self._networks = directory / "networks"
        self._sysctls = directory / "sysctls"

    def holdings(self) -> dict[TaskName, Holding]:
        return {holding.reservation.task: holding for holding in self._load(self._tasks, parse_holding)}

    def networks(self) -> dict[NetworkName, Network]:
        return {network.name: network for network in self._load(self._networks, parse_network)}

    def sysctls(self) -> Mapping[str, str]:
        """The values to put back; empty where nothing was changed."""
        return next(self._load(self._sysctls, parse_texts), {})

    def save_holding(self, holding: Holding) -> None:
        _write(self._tasks / f"{holding.reservation.task}.json", holding_document(holding))

    def save_network(self, network: Network) -> None:
        _write(self._networks / f"{network.name}.json", network_document(network))

    def save_sysctls(self, before: Mapping[str, str]) -> None:
        _write(self._sysctls / "before.json", dict(before))

    def remove_holding(self, task: TaskName) -> None:
        (self._tasks / f"{task}.json").unlink(missing_ok=True)
        (self._tasks / f"{task}.json{_DAMAGED}").unlink(missing_ok=True)

    def remove_network(self, name: NetworkName) -> None:
        (self._networks / f"{name}.json").unlink(missing_ok=True)
        (self._networks / f"{name}.json{_DAMAGED}").unlink(missing_ok=True)

    def remove_sysctls(self) -> None:
        (self._sysctls / "before.json").unlink(missing_ok=True)

    def damaged_tasks(self) -> tuple[TaskName, ...]:
        """The tasks whose files have been set aside."""
        names = sorted(path.name.removesuffix(f".json{_DAMAGED}") for path in self._tasks.glob(f"*.json{_DAMAGED}"))
        return tuple(map(TaskName, names))

    def _load(self, directory: Path, parse: Callable[[object], T]) -> Iterator[T]:
        return _read(_files(directory), parse, _set_aside)


def _set_aside(path: Path, reason: str) -> None:
    path.replace(path.with_name(path.name + _DAMAGED))
    _log.warning("%s cannot be read (%s): it is set aside as %s%s.", path, reason, path.name, _DAMAGED)


def _ignore(_path: Path, _reason: str) -> None:
    """For readers, who leave the damage to the writer."""


def _files(directory: Path) -> Sequence[Path]:
    return sorted(directory.glob("*.json"))


def _read(
    paths: Iterable[Path], parse: Callable[[object], T], damage: Callable[[Path, str], None] = _ignore
) -> Iterator[T]:
    for path in paths:
        try:
            yield parse(json_document(path.read_bytes(), "the file"))
        except FileNotFoundError:  # released since the directory was listed
            continue
        except (OSError, Solo5Error) as error:
            damage(path, str(error))


def _write(path: Path, document: object) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(document))
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise HostError(
            f"{path} cannot be written: {error.strerror}.", f"`df {path.parent}` shows the space."
        ) from error
