"""Nomad's base service: what the plugin is, the schema of its configuration, and its configuration.

Of the three processes that an agent launches at its start, two are called by these alone (plugins/base and
helper/pluginutils/loader of Nomad); so this imports nothing of the driver.
"""

import asyncio

from solo5_systemd.base.errors import DependencyError, SettingsError
from solo5_systemd.nomad.plugin_config import NAME, PLUGIN, REMOVE_NOTHING, PluginConfig, plugin_config
from solo5_systemd.nomad.proto import base_pb2 as base
from solo5_systemd.nomad.proto.base_pb2 import ClientTopology

API_VERSION = "v0.1.0"
"""The only version of Nomad's plugin API."""


class BasePlugin:
    """The service hashicorp.nomad.plugins.base.proto.BasePlugin.

    Attributes:
        config: the defaults until Nomad has sent it.
        config_error: what is wrong with the configuration; empty: nothing.
        topology: the node's processors; without any until Nomad has sent them.
        changed: is set when Nomad has sent a configuration.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.config = PluginConfig()
        self.config_error = ""
        self.topology = ClientTopology()
        self.changed = asyncio.Event()
        self._packed_config = b""

    async def plugin_info(self, _: base.PluginInfoRequest) -> base.PluginInfoResponse:
        """Return name, version and type of the plugin."""
        return base.PluginInfoResponse(
            type=base.DRIVER, plugin_api_versions=[API_VERSION], plugin_version=self.version, name=NAME
        )

    async def config_schema(self, _: base.ConfigSchemaRequest) -> base.ConfigSchemaResponse:
        """Return the schema of the plugin configuration."""
        return base.ConfigSchemaResponse(spec=PLUGIN)

    async def set_config(self, request: base.SetConfigRequest) -> base.SetConfigResponse:
        """Set the plugin configuration, without effect on the host: Nomad calls it in short-lived processes, too.

        A wrong configuration is not an error of this call, which would keep the agent from starting. Instead the
        driver is undetected, with the reason in its fingerprint.
        """
        if request.HasField("nomad_config"):
            self.topology = request.nomad_config.driver.Topology
        self._packed_config = request.msgpack_config
        self.decode_config()
        self.changed.set()
        return base.SetConfigResponse()

    def decode_config(self) -> None:
        """Decode the configuration, again after an error: msgpack, which was missing, may be installed now."""
        try:
            self.config, self.config_error = plugin_config(self._packed_config), ""
        except (SettingsError, DependencyError) as error:
            self.config, self.config_error = REMOVE_NOTHING, str(error)
