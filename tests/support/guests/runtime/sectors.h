/* Text in the sectors of a disk. A sector that cannot be read or written aborts the guest, unless it is tried. */
#pragma once

#include "guest.h"

void sectors_announce(unsigned handle);
const char *sector_read(unsigned handle, uint64_t sector);
void sector_write(unsigned handle, uint64_t sector, const char *text);
bool sector_try_write(unsigned handle, uint64_t sector, const char *text);
