"""The bus side of the engine against a real dbus-daemon, with a fake PID 1 on it."""
