"""Resource usage of tasks."""
