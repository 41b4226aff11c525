"""Task logs: Nomad's FIFOs, written by the console relay."""
