/* Burns CPU: for=SECONDS, or for ever. */
#include "guest.h"

MANIFEST();

int guest_main(void)
{
    uint64_t seconds = option_number("for=", 0);
    uint64_t end = seconds ? now() + seconds * SECOND : FOREVER;
    print("spinning\n");
    /* Some turns per look at the clock, which leaves the guest. */
    while (end == FOREVER || now() < end)
        for (volatile unsigned i = 0; i < 10000; i++)
            ;
    print("spun\n");
    return 0;
}
