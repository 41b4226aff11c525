"""Hostile input: what generates it, what must hold for every piece of it, and the command that runs it for hours."""
