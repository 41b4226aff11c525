/* Continues a sequence on the disk `data`: the records of sequence.c, from the one after the newest that is there. Writes
 * each to `scratch`, too, and prints `count N`, of this run, once a record is on both. --count=MS is the time between
 * two. Before: the newest record of each disk, and the second sector of `config`, which has the content of the first file
 * of a tar archive. */
#include "records.h"

MANIFEST(BLOCK("data"), BLOCK("scratch"), BLOCK("config"));

#define DATA 1
#define SCRATCH 2
#define CONFIG 3

static uint64_t newest(unsigned handle)
{
    uint64_t found = 0, sectors = record_sectors(handle);
    for (uint64_t sector = 0; sector < sectors; sector++) {
        uint64_t number = record_read(handle, sector);
        found = number > found ? number : found;
    }
    print("%s: newest %lu\n", device(handle)->name, found);
    return found;
}

int guest_main(void)
{
    uint64_t period = option_number("--count=", 20) * (SECOND / 1000);
    uint64_t number = newest(DATA);
    newest(SCRATCH);
    print("config: '%s'\n", sector_read(CONFIG, 1));
    for (unsigned count = 1;; count++) {
        record_write(DATA, ++number);
        record_write(SCRATCH, number);
        print("count %u\n", count);
        wait_until(now() + period);
    }
}
