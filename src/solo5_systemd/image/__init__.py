"""Images: the ELF file, its manifest, and the image store."""
