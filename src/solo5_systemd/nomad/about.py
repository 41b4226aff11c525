"""What the driver is called, and what it can do."""

from solo5_systemd.nomad.proto import driver_pb2 as wire

NAME = "solo5"
"""A job's `driver`, and the file name of the plugin: Nomad looks its configuration up by the latter."""

API_VERSION = "v0.1.0"
"""The one version of Nomad's plugin API."""

HANDLE_VERSION = 1
"""Of TaskHandle: zero is what Nomad takes for a handle from before 0.9."""


def capabilities() -> wire.DriverCapabilities:
    """What a job may ask for; Nomad refuses the rest before it comes to us.

    NONE for the file system: a unikernel sees none of the host's, and `NOMAD_TASK_DIR` and its like are the paths that
    `unikernel` and `source` may begin with. Neither group networks nor mounts are offered.
    """
    return wire.DriverCapabilities(
        send_signals=True,
        exec=False,
        fs_isolation=wire.DriverCapabilities.NONE,
        network_isolation_modes=[wire.NetworkIsolationSpec.HOST],
        must_create_network=False,
        mount_configs=wire.DriverCapabilities.NO_MOUNTS,
    )
