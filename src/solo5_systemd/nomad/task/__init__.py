"""The life of one task: start, wait, recover, signal, exit result."""
