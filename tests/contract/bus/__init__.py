"""The D-Bus client on a real dbus-daemon, with a fake PID 1."""
