"""The plugin configuration and the task options: schema, decoding, checks."""
