"""Entry point of solo5-relay; `run` imports the rest, so that a missing module is reported in one line."""

import sys

from solo5_systemd.dbus.process import run_module

if __name__ == "__main__":
    sys.exit(run_module("solo5_systemd.relay.main"))
