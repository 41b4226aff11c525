"""Run Solo5 unikernels as ordinary systemd units."""

__version__ = "0.1.0"
