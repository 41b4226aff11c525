"""The entry of the plugin: what it is made of is imported where a missing module can be told in one sentence."""

import os
import sys


def main() -> None:
    """Serve until Nomad ends it, and exit.

    Without gRPC or protobuf there is no handshake: the sentence goes to the log that Nomad reads from stderr.
    """
    try:
        from solo5_systemd.nomad.plugin import main as serve
    except ImportError as error:
        sys.exit(_lacking(error))
    serve()


def _lacking(error: ImportError) -> int:
    import time

    from solo5_systemd.dependencies import blamed
    from solo5_systemd.goplugin.hclog import line

    os.write(2, line(level="error", message=str(blamed(error)), time=time.time(), fields={}))
    return 1


if __name__ == "__main__":
    main()
