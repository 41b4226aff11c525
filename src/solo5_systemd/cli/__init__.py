"""`solo5ctl`: the engine on a command line."""
