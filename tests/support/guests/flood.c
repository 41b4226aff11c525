/* Floods the console: lines=N lines (1000), each of bytes=N bytes (80) with its newline, numbered
 * from 1 so that a lost or torn line shows; at-once=N of them in one write (1). It begins after=N
 * seconds (0), and stays for=N seconds (0) in the end. */
#include "guest.h"

MANIFEST();

#define LINE_MAX 65536

static void pause_for(uint64_t seconds)
{
    for (uint64_t end = now() + seconds * SECOND; now() < end;)
        wait_until(end);
}

int guest_main(void)
{
    static char line[LINE_MAX];
    uint64_t lines = option_number("lines=", 1000), bytes = option_number("bytes=", 80);
    if (bytes < 16 || bytes > LINE_MAX)
        ABORT("bytes= must be from 16 to 65536");
    uint64_t at_once = option_number("at-once=", 1);
    if (at_once < 1 || bytes * at_once > LINE_MAX)
        ABORT("bytes= times at-once= must be from 16 to 65536");
    pause_for(option_number("after=", 0));
    for (uint64_t i = 1; i <= lines;) {
        size_t filled = 0;
        for (uint64_t n = 0; n < at_once && i <= lines; n++, i++, filled += bytes) {
            char *start = line + filled;
            memset(start, '.', bytes);
            start[format(start, bytes, "line %lu ", i)] = '.';
            start[bytes - 1] = '\n';
        }
        print_bytes(line, filled);
    }
    pause_for(option_number("for=", 0));
    return 0;
}
