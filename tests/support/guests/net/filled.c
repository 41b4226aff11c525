#include "filled.h"

#include "guest.h"

#define PAGE 4096
#define PAGES_PER_MIB 256
#define STACK (64 * 1024) /* at the end of memory, and in use */
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t *filled;
static unsigned pages;

/* The next value of a sequence that no compressor shortens (xorshift64). */
static uint64_t after(uint64_t value)
{
    value ^= value << 13;
    value ^= value >> 7;
    return value ^ value << 17;
}

void filled_prepare(void)
{
    uintptr_t start = ((uintptr_t)free_memory() + PAGE - 1) / PAGE * PAGE;
    uint64_t value = 1;
    pages = (unsigned)option_number("--fill=", 0) * PAGES_PER_MIB;
    if (!pages)
        return;
    if (start + (uint64_t)pages * PAGE > memory_size() - STACK)
        ABORT("--fill= is more than there is");
    filled = (uint64_t *)start;
    for (size_t i = 0; i < pages * WORDS; i++)
        filled[i] = value = after(value);
}

unsigned filled_intact(void)
{
    unsigned intact = 0;
    uint64_t value = 1;
    for (size_t page = 0; page < pages; page++) {
        bool same = true;
        for (size_t i = page * WORDS; i < (page + 1) * WORDS; i++)
            same &= filled[i] == (value = after(value));
        intact += same;
    }
    return intact;
}
