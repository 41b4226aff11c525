/* Writes records 1, 2, 3… for ever, each to the first disk and then to the second. every=US waits so many microseconds
 * after each. */
#include "records.h"

MANIFEST(BLOCK("first"), BLOCK("second"));

#define DISK_1 1
#define DISK_2 2

int guest_main(void)
{
    uint64_t every = option_number("every=", 0) * (SECOND / 1000000);
    sectors_announce(DISK_1);
    sectors_announce(DISK_2);
    for (uint64_t number = 1;; number++) {
        record_write(DISK_1, number);
        record_write(DISK_2, number);
        if (number == 1)
            print("writing\n");
        if (every)
            wait_until(now() + every);
    }
}
