/* The command line: TENDER [options] [--] IMAGE [arguments], read twice as the real tenders do. */
#pragma once

#include "manifest.h"

struct options {
    uint64_t memory_size; /* bytes, before any rounding */
    char **guest_arguments;
};

/* First pass: where the image is. Ends the process for --help, --version and a missing image. */
const char *options_image(char **argv);
/* Second pass: attaches the devices that options name. Exits with 1 at the first bad option. */
struct options options_apply(char **argv, struct manifest *manifest);
