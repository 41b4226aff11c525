/* Floods the console: lines=N lines (1000), each of bytes=N bytes (80) with its newline, numbered
 * from 1 so that a lost or torn line shows. It begins after=N seconds (0). */
#include "guest.h"

MANIFEST();

#define LINE_MAX 65536

int guest_main(void)
{
    static char line[LINE_MAX];
    uint64_t lines = option_number("lines=", 1000), bytes = option_number("bytes=", 80);
    if (bytes < 16 || bytes > LINE_MAX)
        ABORT("bytes= must be from 16 to 65536");
    for (uint64_t begin = now() + option_number("after=", 0) * SECOND; now() < begin;)
        wait_until(begin);
    for (uint64_t i = 1; i <= lines; i++) {
        memset(line, '.', bytes);
        size_t used = format(line, bytes, "line %lu ", i);
        line[used] = '.';
        line[bytes - 1] = '\n';
        print_bytes(line, bytes);
    }
    return 0;
}
