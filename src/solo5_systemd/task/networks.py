"""Parse what a task has of networks: NICs, published ports, limits, a namespace.

The syntax follows podman-run(1) where podman has the option.
"""

import re

from solo5_systemd.base.names import NETWORK_NAMESPACES, device_name, network_name
from solo5_systemd.network.model import Limits, NicRequest, Protocol, mac_address
from solo5_systemd.network.request_checks import port_range
from solo5_systemd.settings.addresses import host_address, ipv4_address, ipv6_address, routes
from solo5_systemd.task.workload import Publish

_OUTER_COLON = re.compile(r":(?![^\[]*\])")
"""A colon that is not within the brackets around an IPv6 address."""

_ROUTE = "route="
_EVERY_IPV4 = "0.0.0.0"  # noqa: S104 - parsed, never bound


def nic(text: str) -> NicRequest:
    """Parse NIC=NETWORK[,ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS][,route=RANGE], the last any number of times."""
    name, equals, rest = text.partition("=")
    network, *options = rest.split(",")
    if not equals or not network:
        raise ValueError(
            "has no network: expected NIC=NETWORK[,ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS][,route=RANGE]…, such as "
            "service=default"
        )
    behind = [each.removeprefix(_ROUTE) for each in options if each.startswith(_ROUTE)]
    options = [each for each in options if not each.startswith(_ROUTE)]
    values: dict[str, str] = {}
    for word in options:
        key, equals, value = word.partition("=")
        if not equals or key not in ("ip", "ip6", "mac") or key in values:
            raise ValueError(
                f"has {word!r} after the network: expected each of ip=ADDRESS, ip6=ADDRESS, mac=ADDRESS at most once, "
                "and route=RANGE"
            )
        values[key] = value
    return NicRequest(
        nic=device_name(name),
        network=network_name(network),
        ipv4=ipv4_address(values["ip"]) if "ip" in values else None,
        mac=mac_address(values["mac"]) if "mac" in values else None,
        ipv6=ipv6_address(values["ip6"]) if "ip6" in values else None,
        limits=Limits(routes=routes(behind)),
    )


def nic_text(request: NicRequest) -> str:
    """Return what `nic` parses as this request, without its egress and rate."""
    behind = (("route", each) for each in request.limits.routes)
    options = (("ip", request.ipv4), ("ip6", request.ipv6), ("mac", request.mac), *behind)
    given = (f"{key}={value}" for key, value in options if value is not None)
    return ",".join((f"{request.nic}={request.network}", *given))


def publish(text: str) -> tuple[Publish, ...]:
    """Parse [NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp]; an IPv6 address is in brackets. Both ports may be ranges."""
    ports, slash, protocol = text.partition("/")
    *front, host_port, port = _OUTER_COLON.split(ports) if ":" in ports else ("", "", "", "")
    is_whole = bool(host_port and port) and "" not in front and protocol in ([*Protocol] if slash else [""])
    # Unambiguous: an IPv4 address always has dots, a NIC's name has letters and digits only.
    device = front.pop(0) if front and not set(front[0]) & set(".[") else None
    host_ip = front.pop(0) if front else None
    if front or not is_whole:
        raise ValueError(
            "is not a published port: expected [NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp], such as 8080:80 or "
            "127.0.0.1:5353:53/udp"
        )
    address = host_address(_without_brackets(host_ip)) if host_ip is not None else None
    nic = device_name(device) if device is not None else None
    ours, theirs = port_range(host_port), port_range(port)
    if len(ours) != len(theirs):
        raise ValueError(
            f"leads from {len(ours)} ports to {len(theirs)}: expected as many of the guest as of the host, such as "
            "8000-8010:80-90"
        )
    return tuple(
        Publish(
            nic=nic,
            host_ip=None if address is None or str(address) == _EVERY_IPV4 else address,
            host_port=each,
            port=other,
            protocol=Protocol(protocol or Protocol.TCP),
        )
        for each, other in zip(ours, theirs, strict=True)
    )


def publish_text(port: Publish) -> str:
    """Return what `publish` parses as this port."""
    host = "" if port.host_ip is None else f"[{port.host_ip}]:" if port.host_ip.version == 6 else f"{port.host_ip}:"
    nic = "" if port.nic is None else f"{port.nic}:"
    return f"{nic}{host}{port.host_port}:{port.port}/{port.protocol}"


def _without_brackets(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def host_endpoint(port: Publish) -> str:
    """Return `ADDRESS:PORT/PROTOCOL` of the host's side, which no other published port may have."""
    return f"{port.host_ip or '0.0.0.0'}:{port.host_port}/{port.protocol}"  # noqa: S104 - shown, never bound


def namespace_path(text: str) -> str:
    """Return the path of a network namespace; a name is one of /run/netns, as for `ip netns`."""
    if text in ("", ".", "..") or "\0" in text or ("/" in text and not text.startswith("/")):
        raise ValueError("is neither a name nor an absolute path: expected a network namespace such as /run/netns/web")
    return text if text.startswith("/") else f"{NETWORK_NAMESPACES}/{text}"
