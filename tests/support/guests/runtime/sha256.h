/* SHA-256 (FIPS 180-4), without a C library. */
#pragma once

#include "guest.h"

struct sha256 {
    uint32_t state[8];
    uint64_t size;
    unsigned char block[64];
};

void sha256_begin(struct sha256 *hash);
void sha256_add(struct sha256 *hash, const unsigned char *data, size_t size);
void sha256_end(struct sha256 *hash, unsigned char digest[32]);
