"""The engine as the driver holds it: connected when it is first needed, and again after the configuration changed."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from solo5_systemd.nomad.config import PluginConfig
from solo5_systemd.settings import Settings

if TYPE_CHECKING:
    from solo5_systemd.backends import Relay
    from solo5_systemd.runtime import Runtime


class Session:
    """One connection to the machine for the whole life of the plugin.

    Nothing is imported or connected before the first call: Nomad launches the plugin several times at its start, only
    to ask for its name and schema.
    """

    def __init__(self) -> None:
        self._config = PluginConfig()
        self._resources = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._runtime: Runtime | None = None
        self._relay: Relay | None = None

    def configure(self, config: PluginConfig) -> None:
        self._config = config

    def settings(self) -> Settings:
        """Those of /etc/solo5, under what the plugin's configuration says.

        Raises:
            SettingsError: a file is wrong.
        """
        from solo5_systemd.etc import read_settings

        settings = read_settings()
        return replace(settings, tender_paths=self._config.tender_paths or settings.tender_paths)

    async def engine(self) -> "Runtime":
        """The engine.

        Raises:
            HostError: there is no system bus.
            SettingsError: a file below /etc/solo5 is wrong.
        """
        await self._connect()
        assert self._runtime is not None  # noqa: S101 - what connecting is for
        return self._runtime

    async def relay(self) -> "Relay":
        """The relay of consoles; raises as `engine`."""
        await self._connect()
        assert self._relay is not None  # noqa: S101 - what connecting is for
        return self._relay

    async def _connect(self) -> None:
        async with self._connecting:
            if self._runtime is not None:
                return
            from solo5_systemd.runtime import Runtime
            from solo5_systemd.wiring import machine

            backends = await self._resources.enter_async_context(machine(self.settings()))
            self._runtime, self._relay = Runtime(backends), backends.relay

    async def close(self) -> None:
        await self._resources.aclose()
