"""What every room may use: errors, names, decoded values, files, locks."""
