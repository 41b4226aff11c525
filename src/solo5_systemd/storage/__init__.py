"""Disks of unikernels: checks, locks, owners, bind mounts."""
