"""The entry of solo5-relay: what it is made of is imported where a missing module can be told in one sentence."""

import sys

from solo5_systemd.daemon.entry import run

if __name__ == "__main__":
    sys.exit(run("solo5_systemd.relay.main"))
