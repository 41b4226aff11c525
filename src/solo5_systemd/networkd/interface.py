"""The D-Bus interface org.solo5.Network1: what its methods take and give."""

from collections.abc import Iterator
from dataclasses import dataclass

from dbus_next.signature import SignatureTree

from solo5_systemd.network.overview import OVERVIEW_SIGNATURE
from solo5_systemd.network.plan import LEASE_SIGNATURE, NIC_SIGNATURE, PORT_SIGNATURE

NAME = "org.solo5.Network1"
PATH = "/org/solo5/Network1"

_REQUEST = f"sa{NIC_SIGNATURE}a{PORT_SIGNATURE}"


@dataclass(frozen=True)
class Method:
    """Signatures, and the names of the arguments, of what is taken and of what is given."""

    takes: str
    gives: str
    names: str


METHODS = {
    "Reserve": Method(_REQUEST, f"a{LEASE_SIGNATURE}", "task nics ports leases"),
    "Preview": Method(_REQUEST, f"a{LEASE_SIGNATURE}s", "task nics ports leases nft"),
    "Attach": Method("s", "", "task"),
    "Release": Method("s", "", "task"),
    "Leases": Method("", f"a(sa{LEASE_SIGNATURE}a{PORT_SIGNATURE}s)", "leases"),
    "Networks": Method("", f"a{OVERVIEW_SIGNATURE}", "networks"),
    "Collect": Method("b", "as", "dry_run collected"),
}


def introspection() -> str:
    """The interface in the XML of org.freedesktop.DBus.Introspectable."""
    methods = "".join(_method(name, method) for name, method in METHODS.items())
    return f'<node><interface name="{NAME}">{methods}</interface></node>'


def _method(name: str, method: Method) -> str:
    arguments = zip(method.names.split(), _arguments(method), strict=True)
    inner = "".join(f'<arg name="{arg}" {attributes}/>' for arg, attributes in arguments)
    return f'<method name="{name}">{inner}</method>'


def _arguments(method: Method) -> Iterator[str]:
    for direction, signature in (("in", method.takes), ("out", method.gives)):
        for kind in SignatureTree(signature).types:
            yield f'type="{kind.signature}" direction="{direction}"'
