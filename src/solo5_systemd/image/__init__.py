"""What a unikernel says about itself, and the store that its tasks run it from."""
