"""A D-Bus interface: what its methods take and give, what it tells everybody, and how it describes itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dbus_next.signature import SignatureTree


@dataclass(frozen=True)
class Method:
    """Signatures, and the names of the arguments, of what is taken and of what is given."""

    takes: str
    gives: str
    names: str


@dataclass(frozen=True)
class Signal:
    """Signature, and the names of the arguments, of what is told."""

    tells: str
    names: str


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One interface of one object; `name` is the service's as well."""

    name: str
    path: str
    methods: Mapping[str, Method]
    signals: Mapping[str, Signal] = field(default_factory=dict)

    def introspection(self) -> str:
        """In the XML of org.freedesktop.DBus.Introspectable."""
        methods = "".join(_method(name, method) for name, method in self.methods.items())
        signals = "".join(_signal(name, signal) for name, signal in self.signals.items())
        return f'<node><interface name="{self.name}">{methods}{signals}</interface></node>'


def _method(name: str, method: Method) -> str:
    arguments = zip(method.names.split(), _arguments(method), strict=True)
    inner = "".join(f'<arg name="{arg}" {attributes}/>' for arg, attributes in arguments)
    return f'<method name="{name}">{inner}</method>'


def _signal(name: str, signal: Signal) -> str:
    pairs = zip(signal.names.split(), SignatureTree(signal.tells).types, strict=True)
    inner = "".join(f'<arg name="{arg}" type="{kind.signature}"/>' for arg, kind in pairs)
    return f'<signal name="{name}">{inner}</signal>'


def _arguments(method: Method) -> Iterator[str]:
    for direction, signature in (("in", method.takes), ("out", method.gives)):
        for kind in SignatureTree(signature).types:
            yield f'type="{kind.signature}" direction="{direction}"'
