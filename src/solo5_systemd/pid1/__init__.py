"""The programs that PID 1 executes for declared tasks: the generator, and the preparation of each start."""
