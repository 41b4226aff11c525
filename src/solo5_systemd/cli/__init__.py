"""The command line program `solo5ctl`."""
