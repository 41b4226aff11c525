"""Access to the journal: consoles of tasks, messages of PID 1, and entries of our own."""
