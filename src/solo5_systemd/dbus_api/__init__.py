"""The D-Bus interfaces of our two services, for both ends."""
