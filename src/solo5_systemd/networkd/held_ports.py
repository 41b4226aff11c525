"""The port sockets of published ports, kept in systemd's file descriptor store over a restart of the service."""

import logging
import os
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from solo5_systemd.daemon import fdstore
from solo5_systemd.errors import TakenError
from solo5_systemd.network.model import PortRequest
from solo5_systemd.network.port_conflicts import check_bound, show_port
from solo5_systemd.network.port_sockets import bind, bound_ports, is_free

HELD_MAX = 8000
"""systemd passes the names of all descriptors in LISTEN_FDNAMES, at most 128 KiB: 16 bytes for each."""

BARRIER_TIMEOUT_S = 30
_CLOSE_TIMEOUT_S = 1
_CLOSE_INTERVAL_S = 0.002

_log = logging.getLogger(__name__)


class HeldPorts:
    """One port socket for each published port, by its name in the file descriptor store (`_fd_name`)."""

    def __init__(self, restored: Mapping[str, int]) -> None:
        """Take ownership of the file descriptors of an earlier process, by name."""
        self._sockets = {name: socket.socket(fileno=fd) for name, fd in restored.items()}

    def bind(self, ports: Sequence[PortRequest]) -> None:
        """Bind all of these ports or, on an error, none; ports that are bound already stay as they are.

        Raises:
            TakenError: another process has a port, or the limit of port sockets is reached.
        """
        if len(self._sockets) + len(ports) > HELD_MAX:
            raise TakenError(
                f"{len(self._sockets)} ports are published on this host: expected {HELD_MAX} or fewer with these.",
                "End tasks that publish ports, or publish fewer.",
            )
        new: list[PortRequest] = []
        for port in ports:
            if _fd_name(port) in self._sockets:  # a repeated request, or kept over a restart
                continue
            try:
                self._bind(port)
            except OSError as error:
                self.release(new)
                check_bound([port], bound_ports())
                raise TakenError(
                    f"port {show_port(port)} cannot be bound: {os.strerror(error.errno or 0)}; expected a port that no "
                    "other process and no connection of this host uses.",
                    f"`ss -a{port.protocol[0]}n sport = :{port.host_port}` shows the socket.",
                ) from error
            new.append(port)

    def release(self, ports: Iterable[PortRequest]) -> None:
        """Close these port sockets; other processes can bind the ports after `wait_until_free`."""
        for port in ports:
            self._close(_fd_name(port))

    def restore(self, ports: Collection[PortRequest]) -> None:
        """Make these the bound ports: close all other sockets, and bind what is missing, as after an upgrade."""
        for name in self._sockets.keys() - set(map(_fd_name, ports)):
            self._close(name)
        for port in self.bind_missing(ports):
            _log.warning("cannot bind published port %s: another process has bound it", show_port(port))

    def bind_missing(self, ports: Collection[PortRequest]) -> Sequence[PortRequest]:
        """Bind those of these ports that are not bound; return the ports for which bind(2) fails."""
        failed = []
        for port in ports:
            if _fd_name(port) not in self._sockets:
                try:
                    self._bind(port)
                except OSError:
                    failed.append(port)
        return failed

    def _bind(self, port: PortRequest) -> None:
        made = socket.socket(fileno=fdstore.out_of_select(bind(port).detach()))
        self._sockets[_fd_name(port)] = made
        fdstore.store(_fd_name(port), made.fileno())

    def _close(self, name: str) -> None:
        held = self._sockets.pop(name, None)
        if held is not None:
            fdstore.remove(name)
            held.close()


def wait_until_free(ports: Collection[PortRequest]) -> bool:
    """Wait until PID 1 has closed its copies of released port sockets, so that other processes can bind the ports.

    PID 1 closes them in a process of its own (asynchronous_close of src/basic/async.c), some time after the barrier.
    The poll ends after a second: another process may have bound a port in the meantime.

    Returns:
        False where PID 1 has not passed the barrier within `BARRIER_TIMEOUT_S`.
    """
    if not ports:
        return True
    passed = fdstore.barrier(BARRIER_TIMEOUT_S)
    end = time.monotonic() + _CLOSE_TIMEOUT_S
    while not all(map(is_free, ports)) and time.monotonic() < end:
        time.sleep(_CLOSE_INTERVAL_S)
    return passed


def _fd_name(port: PortRequest) -> str:
    """Return the FDNAME= of a port, of at most 15 characters: `t8080`, or `u53-c0000201` for 192.0.2.1."""
    at = f"{port.host_ip:x}" if port.host_ip else ""
    return f"{port.protocol[0]}{port.host_port}-{at}" if at else f"{port.protocol[0]}{port.host_port}"
