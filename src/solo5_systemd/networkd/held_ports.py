"""Port sockets, which keep published ports from other processes.

systemd's file descriptor store keeps them over a restart of the service.
"""

import logging
import os
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, ip_address

from solo5_systemd.base.descriptors import out_of_select
from solo5_systemd.base.errors import TakenError
from solo5_systemd.dbus import fdstore
from solo5_systemd.network.model import IpAddress, PortRequest, Protocol
from solo5_systemd.network.netlink import attach_filter
from solo5_systemd.network.request_checks import HELD_MAX, show_port

_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
_IP_FREEBIND, _IPV6_FREEBIND = 15, 78  # linux/in.h, linux/in6.h


def bind(port: PortRequest) -> socket.socket:
    """Return a new port socket, bound to the port of the host.

    No SO_REUSEADDR: a later bind(2) fails with any options. No listen(2): a TCP connection that no rule translates is
    refused, as without the socket. A BPF filter drops UDP datagrams that no rule translates before they take memory.
    IP_FREEBIND: the address may be absent for now, as on a link that is down. IPV6_V6ONLY: IPv4 has its own socket.

    Raises:
        OSError: EADDRINUSE: another process has the port, or a connection of the host has it as its local port.
    """
    six = port.host_ip is not None and port.host_ip.version == 6
    made = socket.socket(socket.AF_INET6 if six else socket.AF_INET, _KINDS[port.protocol] | socket.SOCK_CLOEXEC)
    try:
        if six:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        else:
            made.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        if port.protocol is Protocol.UDP:
            attach_filter(made)
        made.bind((str(port.host_ip or IPv4Address(0)), port.host_port))
    except OSError:
        made.close()
        raise
    return made


def is_free(port: PortRequest) -> bool:
    """Return whether bind(2) succeeds for the port at this moment."""
    try:
        bind(port).close()
    except OSError:
        return False
    return True


BARRIER_TIMEOUT_S = 30
_CLOSE_TIMEOUT_S = 1
_CLOSE_INTERVAL_S = 0.002

_log = logging.getLogger(__name__)


class HeldPorts:
    """One port socket for each published port and family. Those of a task are stored together, by the first's name."""

    def __init__(self, restored: Mapping[str, Sequence[int]]) -> None:
        """Take ownership of the file descriptors of an earlier process, by name."""
        self._sockets: dict[str, int] = {}  # their descriptors: objects would take four times the memory
        self._others: dict[str, str] = {}  # by which name those are stored that are not stored by their own
        for stored, fds in restored.items():
            for held in fds:
                name = _name_of(held)
                self._sockets[name] = held
                if name != stored:
                    self._others[name] = stored

    def bind(self, ports: Sequence[PortRequest]) -> None:
        """Bind all of these ports or, with a TakenError, none; ports that are bound already stay as they are."""
        if len(self._sockets) + len(ports) > HELD_MAX:
            raise TakenError(
                f"{len(self._sockets)} ports are published on this host: expected {HELD_MAX} or fewer with these.",
                "End tasks that publish ports, or publish fewer.",
            )
        new: list[PortRequest] = []
        for port in ports:
            if _name(port) in self._sockets:  # a repeated request, or kept over a restart
                continue
            try:
                self._bind(port)
            except OSError as error:
                self.release(new)
                raise _taken(port, error) from error
            new.append(port)
        self._store(list(map(_name, new)))

    def check(self, ports: Iterable[PortRequest]) -> None:
        """Check that each of these ports is bound already, or can be; raises TakenError."""
        for port in ports:
            if _name(port) not in self._sockets:
                try:
                    bind(port).close()
                except OSError as error:
                    raise _taken(port, error) from error

    def release(self, ports: Iterable[PortRequest]) -> None:
        """Close these port sockets; other processes can bind the ports after `wait_until_free`."""
        self._close({_name(port) for port in ports} & self._sockets.keys())

    def restore(self, ports: Collection[PortRequest]) -> None:
        """Make these the bound ports: close all other sockets, and bind what is missing, as after an upgrade."""
        self._close(self._sockets.keys() - set(map(_name, ports)))
        for port in self.bind_missing(ports):
            _log.warning("cannot bind published port %s: another process has bound it", show_port(port))

    def bind_missing(self, ports: Collection[PortRequest]) -> Sequence[PortRequest]:
        """Bind those of these ports that are not bound; return the ports for which bind(2) fails."""
        failed = []
        for port in ports:
            if _name(port) not in self._sockets:
                try:
                    self._bind(port)
                except OSError:
                    failed.append(port)
                else:
                    self._store([_name(port)])
        return failed

    def _bind(self, port: PortRequest) -> None:
        self._sockets[_name(port)] = out_of_select(bind(port).detach())

    def _store(self, names: Sequence[str]) -> None:
        """Store the sockets of these ports together."""
        for first in range(0, len(names), fdstore.TOGETHER_MAX):
            together = names[first : first + fdstore.TOGETHER_MAX]
            fdstore.store(together[0], [self._sockets[name] for name in together])
            self._others.pop(together[0], None)
            self._others |= dict.fromkeys(together[1:], together[0])

    def _close(self, names: Collection[str]) -> None:
        for name in names:
            os.close(self._sockets.pop(name))
        removed = {self._others.pop(name, name) for name in names}
        for stored in removed:
            fdstore.remove(stored)
        # Of a task's ports, all or none are released; but those that a restart finds may be of an earlier task, too.
        left = [name for name in removed if name in self._sockets and name not in self._others]
        self._store([*left, *(name for name, stored in self._others.items() if stored in removed)])


def wait_until_free(ports: Collection[PortRequest]) -> None:
    """Wait until PID 1 has closed its copies of released port sockets, so that other processes can bind the ports.

    PID 1 closes them in a process of its own (asynchronous_close of src/basic/async.c), some time after the barrier.
    The poll ends after a second: another process may have bound a port in the meantime.
    """
    if not fdstore.barrier(BARRIER_TIMEOUT_S):
        shown = ", ".join(map(show_port, ports))
        _log.warning("timeout: PID 1 has not closed the sockets of ports %s within %d s", shown, BARRIER_TIMEOUT_S)
    end = time.monotonic() + _CLOSE_TIMEOUT_S
    while not all(map(is_free, ports)) and time.monotonic() < end:
        time.sleep(_CLOSE_INTERVAL_S)


def _taken(port: PortRequest, error: OSError) -> TakenError:
    return TakenError(
        f"port {show_port(port)} is taken by another process or a connection of this host ({error.strerror}): expected "
        "a free port.",
        f"`ss -a{port.protocol[0]}np sport = :{port.host_port}` shows it.",
    )


def _name(port: PortRequest) -> str:
    return _port_name(port.protocol, port.host_ip, port.host_port)


def _name_of(held: int) -> str:
    with socket.socket(fileno=os.dup(held)) as copy:
        address, number, *_ = copy.getsockname()
        protocol = next(each for each, kind in _KINDS.items() if kind == copy.type)
    host_ip = ip_address(address)
    return _port_name(protocol, None if host_ip == IPv4Address(0) else host_ip, number)


def _port_name(protocol: Protocol, host_ip: IpAddress | None, port: int) -> str:
    """Return the name of a port of the host: `t8080`, `u53-c0000201` at 192.0.2.1, `t8080-0` at every IPv6 address.

    It has at most 15 characters, 39 with an IPv6 address.
    """
    return f"{protocol[0]}{port}" if host_ip is None else f"{protocol[0]}{port}-{int(host_ip):x}"
