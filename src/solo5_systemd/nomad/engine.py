"""The driver's connection to the engine."""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from solo5_systemd.base.dependencies import dependency_error
from solo5_systemd.nomad.base_plugin import BasePlugin
from solo5_systemd.nomad.plugin_config import PluginConfig
from solo5_systemd.settings.files import CachedSettings
from solo5_systemd.settings.solo5_toml import Settings

if TYPE_CHECKING:
    from solo5_systemd.engine.runtime import Runtime


class EngineSession:
    """The engine, for the life of the plugin."""

    def __init__(self, base: BasePlugin) -> None:
        self._base = base
        self._host_settings = CachedSettings()

    @property
    def config(self) -> PluginConfig:
        """The plugin configuration now."""
        return self._base.config

    def settings(self) -> Settings:
        """Return the settings of /etc/solo5, overridden by the plugin configuration.

        Raises:
            SettingsError: a settings file is wrong.
        """
        own = {key: getattr(self.config, key) for key in ("tender_paths", "image_store_mb", "log_namespace")}
        return replace(self._host_settings(), **{key: value for key, value in own.items() if value is not None})

    @cached_property
    def engine(self) -> "Runtime":
        """The engine, which connects to the system bus at its first call.

        Raises:
            DependencyError: a Python module is missing.
        """
        try:
            from solo5_systemd.bus.connection import Connection
            from solo5_systemd.engine.backends import Backends
            from solo5_systemd.engine.runtime import Runtime
        except ImportError as error:
            raise dependency_error(error) from error
        return Runtime(Backends(Connection(), self.settings))
