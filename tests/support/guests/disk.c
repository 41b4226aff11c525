/* Uses a disk: words of the command line are done in turn. write=TEXT fills the current sector with
 * the text and zeros, try=TEXT does so and prints whether it could, read prints the current sector up to its first zero, sector=N goes there, stay sleeps for ever,
 * watch reads the sector ten times a second for ever, and prints it when its first byte has changed. */
#include "sectors.h"

MANIFEST(BLOCK("storage"));

#define STORAGE 1

static bool is(const char *word, const char *what) { return memcmp(word, what, strlen(what)) == 0; }

static void stay(void)
{
    for (;;)
        wait_until(FOREVER);
}

static void watch(uint64_t sector)
{
    for (int last = -1;; wait_until(now() + SECOND / 10)) {
        const char *text = sector_read(STORAGE, sector);
        if (text[0] != last)
            print("sector %lu: '%s'\n", sector, text);
        last = text[0];
    }
}

static void perform(const char *word, uint64_t *sector)
{
    if (is(word, "sector="))
        *sector = to_number(word + strlen("sector="));
    else if (is(word, "write="))
        sector_write(STORAGE, *sector, word + strlen("write="));
    else if (is(word, "try="))
        print("sector %lu: %s\n", *sector,
            sector_try_write(STORAGE, *sector, word + strlen("try=")) ? "written" : "not written");
    else if (is(word, "read"))
        print("sector %lu: '%s'\n", *sector, sector_read(STORAGE, *sector));
    else if (is(word, "stay"))
        stay();
    else if (is(word, "watch"))
        watch(*sector);
}

int guest_main(void)
{
    uint64_t sector = 0;
    sectors_announce(STORAGE);
    for (unsigned i = 0; i < argument_count(); i++)
        perform(argument(i), &sector);
    return 0;
}
