"""The test machine: how it is made, booted, spoken to and taken away again."""
