"""Nomad's TaskConfig as the engine's workload."""
