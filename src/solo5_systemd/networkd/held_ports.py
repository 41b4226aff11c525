"""The sockets that hold published ports: ours, and kept by systemd while we are started anew."""

import logging
import os
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from solo5_systemd.daemon import fdstore
from solo5_systemd.errors import TakenError
from solo5_systemd.network.model import PortRequest
from solo5_systemd.network.port_conflicts import show_port
from solo5_systemd.network.port_sockets import bind, is_free

HELD_MAX = 8000
"""systemd hands all descriptors' names back in one environment variable, of at most 128 KiB: 16 bytes for each."""

BARRIER_TIMEOUT_S = 30
_CLOSE_TIMEOUT_S = 1
_CLOSE_INTERVAL_S = 0.002

_log = logging.getLogger(__name__)


class HeldPorts:
    """One bound socket for each published port, by a short name (`_name`)."""

    def __init__(self, restored: Mapping[str, int]) -> None:
        """Take what systemd kept of an earlier process; the descriptors are ours from now on."""
        self._sockets = {name: socket.socket(fileno=fd) for name, fd in restored.items()}

    def hold(self, ports: Sequence[PortRequest]) -> None:
        """Bind these ports, or none of them; those that are held already are left alone.

        Raises:
            TakenError: another process has one, or no more can be kept.
        """
        if len(self._sockets) + len(ports) > HELD_MAX:
            raise TakenError(
                f"{len(self._sockets)} ports are published on this host: expected {HELD_MAX} or fewer with these.",
                "End tasks that publish ports, or publish fewer.",
            )
        new: list[PortRequest] = []
        for port in ports:
            if _name(port) in self._sockets:
                continue
            try:
                self._bind(port)
            except OSError as error:
                self.release(new)
                raise TakenError(
                    f"port {show_port(port)} cannot be bound: {os.strerror(error.errno or 0)}; expected one that no "
                    "other process has, and no connection of this host.",
                    f"`ss -a{port.protocol[0]}n sport = :{port.host_port}` shows which.",
                ) from error
            new.append(port)

    def release(self, ports: Iterable[PortRequest]) -> None:
        """Close these; another process can bind them after `let_go`."""
        for port in ports:
            self._close(_name(port))

    def keep(self, ports: Collection[PortRequest]) -> None:
        """Close all others, and bind those of these that are not held, as after an upgrade."""
        for name in self._sockets.keys() - set(map(_name, ports)):
            self._close(name)
        for port in self.retry(ports):
            _log.warning("Port %s is published and not held: another process has bound it.", show_port(port))

    def retry(self, ports: Collection[PortRequest]) -> Sequence[PortRequest]:
        """Bind those of these that are not held; return those that cannot be."""
        lacking = []
        for port in ports:
            if _name(port) not in self._sockets:
                try:
                    self._bind(port)
                except OSError:
                    lacking.append(port)
        return lacking

    def _bind(self, port: PortRequest) -> None:
        made = bind(port)
        self._sockets[_name(port)] = made
        fdstore.store(_name(port), made.fileno())

    def _close(self, name: str) -> None:
        held = self._sockets.pop(name, None)
        if held is not None:
            fdstore.forget(name)
            held.close()


def let_go(ports: Collection[PortRequest]) -> bool:
    """Wait until released ports can be bound by others: PID 1 has copies of our sockets.

    It closes them in a process of its own (asynchronous_close of src/basic/async.c), some time after the barrier. A
    port that another process has bound meanwhile is waited for in vain, for a second.

    Returns:
        False where PID 1 has not answered.
    """
    if not ports:
        return True
    answered = fdstore.barrier(BARRIER_TIMEOUT_S)
    end = time.monotonic() + _CLOSE_TIMEOUT_S
    while not all(map(is_free, ports)) and time.monotonic() < end:
        time.sleep(_CLOSE_INTERVAL_S)
    return answered


def _name(port: PortRequest) -> str:
    """Return the name of a port's descriptor, of at most 15 characters: `t8080`, `u53-c0000201` at 192.0.2.1."""
    at = f"{port.host_ip:x}" if port.host_ip else ""
    return f"{port.protocol[0]}{port.host_port}-{at}" if at else f"{port.protocol[0]}{port.host_port}"
