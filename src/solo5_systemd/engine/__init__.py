"""The story of a task: started, watched, stopped, removed."""
