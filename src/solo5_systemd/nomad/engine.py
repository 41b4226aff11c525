"""The engine as the driver holds it: connected when it is first needed, and again after the configuration changed."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from solo5_systemd.nomad.config.plugin import PluginConfig
from solo5_systemd.settings import Settings

if TYPE_CHECKING:
    from solo5_systemd.engine.backends import Networks, Relay
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.wiring import Machine


class Session:
    """One connection to the machine for the whole life of the plugin.

    Nothing is imported or connected before the first call: Nomad launches the plugin several times at its start, only
    to ask for its name and schema.

    Attributes:
        is_closing: the plugin ends; a call that is cut off by that is no fault.
    """

    def __init__(self) -> None:
        self.is_closing = False
        self._config = PluginConfig()
        self._resources = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._connected: tuple[Machine, Runtime] | None = None

    def configure(self, config: PluginConfig) -> None:
        self._config = config

    def settings(self) -> Settings:
        """Those of /etc/solo5, under what the plugin's configuration says.

        Raises:
            SettingsError: a file is wrong.
        """
        from solo5_systemd.settings_files import read_settings

        settings = read_settings()
        return replace(
            settings,
            tender_paths=self._config.tender_paths or settings.tender_paths,
            image_store_mb=self._config.image_store_mb or settings.image_store_mb,
            log_namespace=self._config.log_namespace or settings.log_namespace,
        )

    async def engine(self) -> "Runtime":
        """The engine.

        Raises:
            HostError: there is no system bus, or no module for it.
        """
        _, runtime = await self._connect()
        return runtime

    async def networks(self) -> "Networks":
        """The network service; raises as `engine`."""
        backends, _ = await self._connect()
        return backends.networks

    async def relay(self) -> "Relay":
        """The relay of consoles; raises as `engine`."""
        backends, _ = await self._connect()
        return backends.relay

    async def _connect(self) -> "tuple[Machine, Runtime]":
        async with self._connecting:
            if self._connected is not None:
                return self._connected
            try:
                from solo5_systemd.engine.runtime import Runtime
                from solo5_systemd.wiring import machine
            except ImportError as error:
                from solo5_systemd.dependencies import blamed

                raise blamed(error) from error
            backends = await self._resources.enter_async_context(machine(self.settings))
            self._connected = backends, Runtime(backends)
            return self._connected

    async def close(self) -> None:
        self.is_closing = True
        await self._resources.aclose()
