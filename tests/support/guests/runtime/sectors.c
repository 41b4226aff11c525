#include "sectors.h"

#define SECTOR_MAX 32768

static char buffer[SECTOR_MAX + 1];

void sectors_announce(unsigned handle)
{
    const struct device *d = device(handle);
    print("%s: capacity %lu bytes, sector %u bytes\n", d->name, d->block.capacity,
        (unsigned)d->block.sector_size);
}

const char *sector_read(unsigned handle, uint64_t sector)
{
    uint16_t size = device(handle)->block.sector_size;
    if (!block_read(handle, sector * size, buffer))
        ABORT("cannot read the sector");
    buffer[size] = 0;
    return buffer;
}

bool sector_try_write(unsigned handle, uint64_t sector, const char *text)
{
    uint16_t size = device(handle)->block.sector_size;
    memset(buffer, 0, size);
    memcpy(buffer, text, strlen(text) < size ? strlen(text) : size);
    return block_write(handle, sector * size, buffer);
}

void sector_write(unsigned handle, uint64_t sector, const char *text)
{
    if (!sector_try_write(handle, sector, text))
        ABORT("cannot write the sector");
}
