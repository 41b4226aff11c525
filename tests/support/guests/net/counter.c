#include "counter.h"

#include "guest.h"

uint64_t counter_tick(void)
{
    static uint64_t due;
    static unsigned number;
    uint64_t period = option_number("--count=", 0) * (SECOND / 1000);
    if (!period)
        return FOREVER;
    if (now() < due)
        return due;
    print("count %u\n", ++number);
    return due = now() + period;
}
