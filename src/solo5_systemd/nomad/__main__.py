"""The entry point of the plugin. It imports the rest itself, so that a missing Python module is one line of the log."""

import os
import sys


def main() -> None:
    """Run the plugin; without gRPC or protobuf there is no handshake, and the error goes to the agent's log, stderr."""
    try:
        from solo5_systemd.nomad.plugin import main as serve
    except ImportError as error:
        import time

        from solo5_systemd.base.dependencies import dependency_error
        from solo5_systemd.goplugin.hclog import log_line

        os.write(2, log_line(level="error", message=str(dependency_error(error)), time=time.time()))
        sys.exit(1)
    serve()


if __name__ == "__main__":
    main()
