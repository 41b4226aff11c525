"""Parts of the machine, in memory."""
