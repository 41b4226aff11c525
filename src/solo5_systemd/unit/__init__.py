"""Translate a workload to a transient unit, and an ended unit to an outcome. Pure: no I/O."""
