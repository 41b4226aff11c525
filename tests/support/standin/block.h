/* Disks: files or block devices, opened as they are, never locked. */
#pragma once

#include "manifest.h"

/* --block:NAME=PATH and --block-sector-size:NAME=BYTES. false: neither, or a bad one. */
bool block_option(const char *word, struct manifest *manifest);
/* Exits with 1 if a file's size does not go with its sector size. */
void block_setup(struct manifest *manifest);
