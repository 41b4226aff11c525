"""solo5-relay: writes the consoles of tasks from the journal into FIFOs."""
