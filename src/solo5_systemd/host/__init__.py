"""Can this machine do it: what doctor reports and what a start needs to know."""
