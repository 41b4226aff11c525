"""The D-Bus interfaces of solo5-networkd and solo5-relay, for service and client."""
