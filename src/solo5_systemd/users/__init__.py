"""Users of tasks: each task runs as a user of its own, taken from the operator's range and given back with the task."""
