/* A Solo5 executable: what its notes say, and where its segments go. Every function exits with 1
 * and a message if the file is not one. */
#pragma once

#include <elf.h>

#include "manifest.h"

struct image {
    const char *name;
    int fd;
    uint64_t entry;
    unsigned segment_count;
    Elf64_Phdr *segment;
};

struct image image_open(const char *name);
void image_require_abi(const struct image *image);
struct manifest *image_manifest(const struct image *image);

/* Copies the segments to their addresses, which must lie below `size` and be mapped writable, and
 * gives each its protection. Returns the end of the highest. */
uint64_t image_load(const struct image *image, uint64_t size);
