"""A D-Bus interface as a value: methods, signals, and its introspection XML."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from solo5_systemd.dbus_api.messages import SignatureTree


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        in_signature: D-Bus signature of its arguments.
        out_signature: D-Bus signature of its reply.
        names: of arguments and results, separated by blanks.
    """

    in_signature: str
    out_signature: str
    names: str


@dataclass(frozen=True)
class Signal:
    """A signal.

    Attributes:
        signature: D-Bus signature of its arguments.
        names: of its arguments, separated by blanks.
    """

    signature: str
    names: str


@dataclass(frozen=True, kw_only=True)
class Interface:
    """An interface of one object.

    Attributes:
        name: of the interface, which is the bus name of the service too.
        path: of the object.
        methods: by name.
        signals: by name.
    """

    name: str
    path: str
    methods: Mapping[str, Method]
    signals: Mapping[str, Signal] = field(default_factory=dict)

    def introspection(self) -> str:
        """Return the XML of org.freedesktop.DBus.Introspectable.Introspect."""
        methods = "".join(_method(name, method) for name, method in self.methods.items())
        signals = "".join(_signal(name, signal) for name, signal in self.signals.items())
        return f'<node><interface name="{self.name}">{methods}{signals}</interface></node>'


def _method(name: str, method: Method) -> str:
    arguments = zip(method.names.split(), _arguments(method), strict=True)
    inner = "".join(f'<arg name="{arg}" {attributes}/>' for arg, attributes in arguments)
    return f'<method name="{name}">{inner}</method>'


def _signal(name: str, signal: Signal) -> str:
    pairs = zip(signal.names.split(), SignatureTree(signal.signature).types, strict=True)
    inner = "".join(f'<arg name="{arg}" type="{kind.signature}"/>' for arg, kind in pairs)
    return f'<signal name="{name}">{inner}</signal>'


def _arguments(method: Method) -> Iterator[str]:
    for direction, signature in (("in", method.in_signature), ("out", method.out_signature)):
        for kind in SignatureTree(signature).types:
            yield f'type="{kind.signature}" direction="{direction}"'
