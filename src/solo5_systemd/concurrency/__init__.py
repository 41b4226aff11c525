"""Retries, locks by key, and child processes."""
