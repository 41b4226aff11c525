"""What a task is to run: the workload, and its settings in every language. All pure."""
