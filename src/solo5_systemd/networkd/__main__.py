"""Entry point of solo5-networkd. `dbus.entry` reports a missing module in one sentence."""

import sys

from solo5_systemd.dbus.entry import run

if __name__ == "__main__":
    sys.exit(run("solo5_systemd.networkd.main"))
