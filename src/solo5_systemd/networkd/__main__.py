"""Entry point of solo5-networkd. `run_module` reports a missing module in one sentence."""

import sys

from solo5_systemd.dbus.process import run_module

if __name__ == "__main__":
    sys.exit(run_module("solo5_systemd.networkd.main"))
