"""What a task says: its console, by way of the journal."""
