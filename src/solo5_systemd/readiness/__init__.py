"""Readiness of a guest: a port that answers, or a line of its console."""
