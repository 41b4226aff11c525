#include "records.h"

#define WORDS 64
#define FACTOR 0x9e3779b97f4a7c15

static uint64_t record[WORDS];

uint64_t record_sectors(unsigned handle) { return device(handle)->block.capacity / sizeof(record); }

uint64_t record_read(unsigned handle, uint64_t sector)
{
    if (!block_read(handle, sector * sizeof(record), record))
        ABORT("cannot read the sector");
    for (unsigned i = 1; i < WORDS; i++)
        if (record[i] != (record[0] ? record[0] * FACTOR + i : 0))
            ABORT("a torn record");
    return record[0];
}

void record_write(unsigned handle, uint64_t number)
{
    record[0] = number;
    for (unsigned i = 1; i < WORDS; i++)
        record[i] = number * FACTOR + i;
    if (!block_write(handle, number % record_sectors(handle) * sizeof(record), record))
        ABORT("cannot write the sector");
}
