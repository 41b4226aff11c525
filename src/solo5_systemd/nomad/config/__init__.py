"""The plugin's configuration and a task's options: their schema, decoded and checked."""
