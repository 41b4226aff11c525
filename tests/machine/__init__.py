"""Claims about the installed package, made on a booted machine."""
