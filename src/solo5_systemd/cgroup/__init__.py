"""What a task uses, from the kernel's own accounts."""
