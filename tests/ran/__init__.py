"""No test that runs nowhere: each run's record, and what they show together."""
