"""The framework of the two D-Bus services, solo5-networkd and solo5-relay."""
