"""PID 1 and our network service over D-Bus, as a client."""
