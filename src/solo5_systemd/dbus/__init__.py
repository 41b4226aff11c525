"""D-Bus messages and connections, and the frame of a service."""
