"""The life of a task: start, wait, stop, remove."""
