"""Random operations on many tasks, against a model of what must be: `python3 -m tests.machine.chaos --seed S`."""
