/* Sleeps: for=SECONDS, or for ever. */
#include "guest.h"

MANIFEST();

int guest_main(void)
{
    uint64_t seconds = option_number("for=", 0);
    uint64_t end = seconds ? now() + seconds * SECOND : FOREVER;
    print("sleeping\n");
    while (now() < end)
        wait_until(end);
    print("awake\n");
    return 0;
}
