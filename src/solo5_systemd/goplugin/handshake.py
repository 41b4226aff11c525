"""The handshake of host and plugin, before the first call (go-plugin's client.go and server.go)."""

from collections.abc import Mapping
from dataclasses import dataclass

from solo5_systemd.base.errors import InvalidRequestError

CORE_PROTOCOL = 1
"""The version of go-plugin's core protocol."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a host and its plugins agree on.

    Attributes:
        cookie: an environment variable that a host sets for its plugins, against a start by hand; it is no secret.
    """

    cookie: str
    value: str
    version: int

    def check_cookie(self, environment: Mapping[str, str]) -> None:
        """Check that a host started this process.

        Raises:
            InvalidRequestError: the cookie is missing or wrong.
        """
        if environment.get(self.cookie) != self.value:
            raise InvalidRequestError(
                f"this program is a plugin: {self.cookie} is not what a host sets it to.",
                "Put it, or a link to it, into the host's plugin directory; there is nothing to run by hand.",
            )

    def check_protocol(self, environment: Mapping[str, str]) -> None:
        """Check that the host uses the supported protocol, without TLS.

        Raises:
            InvalidRequestError: the host requires TLS, or another version of its protocol.
        """
        if environment.get("PLUGIN_CLIENT_CERT"):
            raise InvalidRequestError(
                "the host requires TLS (PLUGIN_CLIENT_CERT is set), which this plugin does not support: "
                "expected a host without AutoMTLS, as the socket is in a directory that only its owner can enter."
            )
        offered = environment.get("PLUGIN_PROTOCOL_VERSIONS", "")
        if offered and str(self.version) not in (version.strip() for version in offered.split(",")):
            raise InvalidRequestError(
                f"the host has version {offered} of its plugin protocol: expected {self.version}.",
                "Install the plugin's release for this host.",
            )

    def line(self, socket: str) -> str:
        """Return the line that the host reads from stdout once the socket accepts connections.

        The last field would be the plugin's certificate.
        """
        return f"{CORE_PROTOCOL}|{self.version}|unix|{socket}|grpc|\n"
