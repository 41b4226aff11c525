/* The calls an hvt guest makes by writing to an I/O port. */
#pragma once

#include "manifest.h"
#include "poll.h"

/* Before the first call. Guest memory ends at `memory_size`. */
void hypercall_setup(struct manifest *manifest, struct poll_set waiting, uint64_t memory_size);
/* Ends the process for a halt, and as the real tender does for a port or an error without an
 * answer. */
void hypercall(uint16_t port, uint32_t argument);
