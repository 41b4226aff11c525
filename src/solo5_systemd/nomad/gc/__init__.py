"""Removal of tasks and networks that the agent no longer has."""
