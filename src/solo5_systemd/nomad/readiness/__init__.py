"""Readiness probes, and the watch over a ready task."""
