"""The messages of go-plugin's own services."""
