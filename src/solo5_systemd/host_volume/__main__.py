"""The entry point of the plugin `solo5-disk`. Nomad waits a second for `fingerprint`: it imports nothing more."""

import sys

VERSION = "1.0.0"
"""The plugin's own version, which Nomad shows as the attribute `plugins.host_volume.solo5-disk.version`."""


def main() -> int:
    """Run one operation of Nomad's plugin protocol, and return the exit status."""
    operation = sys.argv[1] if len(sys.argv) > 1 else ""
    if operation == "fingerprint":
        print(f'{{"version": "{VERSION}"}}')
        return 0
    from solo5_systemd.host_volume.plugin import run

    return run(operation)


if __name__ == "__main__":
    sys.exit(main())
