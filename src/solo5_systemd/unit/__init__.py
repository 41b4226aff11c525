"""How a workload becomes a systemd unit, and how a unit's end becomes an outcome. All of it pure."""
