"""Declarations: a task as a file, `/etc/solo5/NAME.unikernel`, in the syntax of systemd's unit files."""
