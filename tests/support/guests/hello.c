/* Prints its arguments, then the bytes of hex=BYTES and fill=N dots (up to 49152) as one line, and exits with exit=N,
 * after for=SECONDS. */
#include "guest.h"

MANIFEST();

#define FILL_MAX 49152

static unsigned digit(char c)
{
    return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

static void print_line(const char *hex, uint64_t fill)
{
    static char line[FILL_MAX + 2048];
    size_t filled = 0;
    for (; hex[0] && hex[1] && filled < 2047; hex += 2)
        line[filled++] = (char)(digit(hex[0]) << 4 | digit(hex[1]));
    if (fill > FILL_MAX)
        ABORT("fill= must be from 0 to 49152");
    memset(line + filled, '.', fill);
    line[filled + fill] = '\n';
    print_bytes(line, filled + fill + 1);
}

int guest_main(void)
{
    print("arguments: '%s'\n", command_line());
    for (unsigned i = 0; i < argument_count(); i++)
        print("argument %u: '%s'\n", i + 1, argument(i));
    if (option("hex=", 0))
        print_line(option("hex=", 0), option_number("fill=", 0));
    uint64_t end = now() + option_number("for=", 0) * SECOND;
    while (now() < end)
        wait_until(end);
    return (int)option_number("exit=", 0);
}
