"""The D-Bus client of PID 1, solo5-networkd and solo5-relay."""
