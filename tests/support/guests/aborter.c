/* Gives up: how=assert, as a failed check of the runtime does (the default), how=memory, as the runtime
 * does that finds no room beside the image, or how=call, as a program does that calls solo5_abort(). */
#include "guest.h"

MANIFEST();

int guest_main(void)
{
    if (flag("how=call"))
        solo5_abort();
    if (flag("how=memory"))
        ABORT("Not enough memory");
    ABORT("asked to");
}
