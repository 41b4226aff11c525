/* Gives up: how=assert, as a failed check of the runtime does (the default), or how=call, as a program
 * does that calls solo5_abort(). */
#include "guest.h"

MANIFEST();

int guest_main(void)
{
    if (flag("how=call"))
        solo5_abort();
    ABORT("asked to");
}
