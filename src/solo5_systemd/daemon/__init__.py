"""What a small service of ours on the bus is made of, whatever it serves."""
