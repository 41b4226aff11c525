"""The driver's name, API versions and capabilities."""

from solo5_systemd.nomad.proto import driver_pb2 as wire

NAME = "solo5"
"""The value of a job's `driver`. Also the plugin's file name, by which Nomad looks up its configuration."""

API_VERSION = "v0.1.0"
"""The only version of Nomad's plugin API."""

HANDLE_VERSION = 1
"""The version of TaskHandle. Nomad takes zero for a handle from before 0.9."""


def capabilities() -> wire.DriverCapabilities:
    """Return the driver's capabilities. Nomad itself refuses a job that needs others.

    File system isolation is NONE, so that `NOMAD_TASK_DIR` and the like are host paths, as `unikernel` and `source`
    need them; a unikernel sees no file system of the host anyway. Group networks and mounts are not supported.
    """
    return wire.DriverCapabilities(
        send_signals=True,
        exec=False,
        fs_isolation=wire.DriverCapabilities.NONE,
        network_isolation_modes=[wire.NetworkIsolationSpec.HOST],
        must_create_network=False,
        mount_configs=wire.DriverCapabilities.NO_MOUNTS,
    )
