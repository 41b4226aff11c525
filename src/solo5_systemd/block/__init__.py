"""Disks: what is offered to a unikernel's block devices, and that nobody else writes it meanwhile."""
