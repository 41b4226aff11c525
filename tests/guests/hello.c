/* Says what it was told, and exits as it was told: exit=N. */
#include "guest.h"

MANIFEST();

int guest_main(void)
{
    print("arguments: '%s'\n", command_line());
    for (unsigned i = 0; i < argument_count(); i++)
        print("argument %u: '%s'\n", i + 1, argument(i));
    return (int)option_number("exit=", 0);
}
