/* Numbered records, each in sector N modulo the sectors of the disk. The 64 words of a sector are N, and N times a
 * constant plus their index: a part of an earlier record shows. A sector that cannot be used aborts the guest. */
#pragma once

#include "sectors.h"

uint64_t record_sectors(unsigned handle);
uint64_t record_read(unsigned handle, uint64_t sector); /* its number; 0: none */
void record_write(unsigned handle, uint64_t number);
