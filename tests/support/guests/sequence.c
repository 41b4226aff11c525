/* Writes records 1, 2, 3… for ever, each to the first disk and then to the second: record N to sector N modulo the number
 * of sectors of that disk. The 64 words of a sector are N, and N times a constant plus their index: a part of an earlier
 * record shows. */
#include "sectors.h"

MANIFEST(BLOCK("first"), BLOCK("second"));

#define DISK_1 1
#define DISK_2 2
#define WORDS 64
#define FACTOR 0x9e3779b97f4a7c15

static uint64_t record[WORDS];

static void write_record(unsigned handle, uint64_t number)
{
    uint64_t sectors = device(handle)->block.capacity / sizeof(record);
    if (!block_write(handle, number % sectors * sizeof(record), record))
        ABORT("cannot write the sector");
}

int guest_main(void)
{
    sectors_announce(DISK_1);
    sectors_announce(DISK_2);
    for (uint64_t number = 1;; number++) {
        record[0] = number;
        for (unsigned i = 1; i < WORDS; i++)
            record[i] = number * FACTOR + i;
        write_record(DISK_1, number);
        write_record(DISK_2, number);
        if (number == 1)
            print("writing\n");
    }
}
