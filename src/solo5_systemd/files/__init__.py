"""Files that another user or process may replace at any moment, and files that are replaced atomically."""
