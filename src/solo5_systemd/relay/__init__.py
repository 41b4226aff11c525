"""The console relay: tasks' lines from the journal into FIFOs that somebody reads."""
