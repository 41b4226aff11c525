"""`solo5-disk`: a plugin for Nomad's dynamic host volumes, each of which has a disk image."""
