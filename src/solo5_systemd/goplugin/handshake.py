"""What host and plugin agree on before the first call (go-plugin's client.go and server.go)."""

from collections.abc import Mapping
from dataclasses import dataclass

from solo5_systemd.errors import InvalidRequestError

CORE_PROTOCOL = 1
"""Go-plugin's version of the handshake itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MagicCookie:
    """An environment variable by which a plugin knows that a host started it; no secret."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Handshake:
    """The host's cookie, and the one version of the host's own protocol that the plugin speaks."""

    cookie: MagicCookie
    version: int

    def recognise(self, environment: Mapping[str, str]) -> None:
        """Make sure that a host started us.

        Raises:
            InvalidRequestError: a person did, or a host of something else.
        """
        if environment.get(self.cookie.name) != self.cookie.value:
            raise InvalidRequestError(
                f"this program is a plugin: {self.cookie.name} is not what a host sets it to.",
                "Put it, or a link to it, into the host's plugin directory; there is nothing to run by hand.",
            )

    def agree(self, environment: Mapping[str, str]) -> None:
        """Make sure that the host speaks as we do.

        Raises:
            InvalidRequestError: it wants TLS, or another version of its protocol.
        """
        if environment.get("PLUGIN_CLIENT_CERT"):
            raise InvalidRequestError(
                "the host asks for TLS (PLUGIN_CLIENT_CERT is set), which this plugin does not speak: "
                "expected a host without AutoMTLS, as the socket is in a directory that only its owner can enter."
            )
        offered = environment.get("PLUGIN_PROTOCOL_VERSIONS", "")
        if offered and str(self.version) not in (version.strip() for version in offered.split(",")):
            raise InvalidRequestError(
                f"the host speaks version {offered} of its plugin protocol: expected {self.version}.",
                "Install the plugin's release for this host.",
            )

    def line(self, socket: str) -> str:
        """What the host waits for on our stdout, once *socket* answers; the last field would be a certificate."""
        return f"{CORE_PROTOCOL}|{self.version}|unix|{socket}|grpc|\n"
