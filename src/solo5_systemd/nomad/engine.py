"""The driver's connection to the engine."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from solo5_systemd.nomad.config.plugin import PluginConfig
from solo5_systemd.settings.solo5_toml import Settings

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime
    from solo5_systemd.settings.files import CachedSettings


class EngineSession:
    """One lazy connection to the system bus and the services, for the life of the plugin.

    The first call imports and connects. Before it nothing is: Nomad launches the plugin several times at its own start,
    only for its name and schema.

    Attributes:
        is_closing: the plugin shuts down, so failing calls are expected.
    """

    def __init__(self) -> None:
        self.is_closing = False
        self._config = PluginConfig()
        self._resources = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._engine: Runtime | None = None
        self._host_settings: CachedSettings | None = None

    def configure(self, config: PluginConfig) -> None:
        """Set the plugin configuration that `settings` applies."""
        self._config = config

    def settings(self) -> Settings:
        """Return the settings of /etc/solo5, overridden by the plugin configuration.

        Raises:
            SettingsError: a settings file is wrong.
        """
        if self._host_settings is None:
            from solo5_systemd.settings.files import CachedSettings

            self._host_settings = CachedSettings()
        settings = self._host_settings()
        return replace(
            settings,
            tender_paths=self._config.tender_paths or settings.tender_paths,
            image_store_mb=self._config.image_store_mb or settings.image_store_mb,
            log_namespace=self._config.log_namespace or settings.log_namespace,
        )

    async def engine(self) -> "Runtime":
        """Return the engine, connected.

        Raises:
            HostError: the system bus is not reachable.
            DependencyError: a Python module is missing.
        """
        async with self._connecting:  # concurrent first calls share one connection
            if self._engine is not None:
                return self._engine
            try:
                from solo5_systemd.wiring.engine import connect
            except ImportError as error:
                from solo5_systemd.base.dependencies import dependency_error

                raise dependency_error(error) from error
            self._engine = await self._resources.enter_async_context(connect(self.settings))
            return self._engine

    async def close(self) -> None:
        """Disconnect."""
        self.is_closing = True
        await self._resources.aclose()
