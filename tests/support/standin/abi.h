/* Where the two tenders differ. One of hvt.c and spt.c is linked, and main.c tells the story. */
#pragma once

#include "image.h"

#define ABI_VERSION 2
#define COMMAND_LINE_SIZE 8192 /* with its terminator */
#define GUEST_MEMORY_BASE 0x10000 /* the lowest address vm.mmap_min_addr lets us map */
#define MIB (1UL << 20)

extern const uint32_t abi_target;
extern const char abi_target_name[]; /* as messages give it */
extern const char abi_option_help[];

/* An option of this tender only. false: not one. */
bool abi_option(const char *word);

/* Signals, memory of about the size asked for, whatever else must exist before the image is
 * loaded. Returns the size of memory as the guest sees it. */
uint64_t abi_prepare(uint64_t memory_size, const struct manifest *manifest);

/* mprotect for guest memory. */
int memory_protect(uint64_t start, uint64_t end, int protection);

/* An event source for the guest's poll. */
void abi_poll_add(int fd, uint64_t handle);

struct start {
    uint64_t memory_size, image_end, entry;
    struct manifest *manifest;
    char **arguments;
};
_Noreturn void abi_enter(const struct start *start);

/* Puts the manifest and the command line into guest memory. */
struct placed {
    uint64_t manifest, command_line;
};
struct placed place_inputs(uint64_t at, const struct start *start);
