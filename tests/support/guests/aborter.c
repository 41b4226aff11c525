/* Gives up: how=assert, as a failed check of the runtime does (the default), how=memory, as the runtime
 * does that finds no room beside the image, how=call, as a program does that calls solo5_abort(), or how=start and
 * how=collect, as OCaml's runtime does without memory at its start and later. */
#include "guest.h"

MANIFEST();

int guest_main(void)
{
    if (flag("how=call"))
        solo5_abort();
    if (flag("how=start")) {
        print("Fatal error: Not enough heap memory to reserve minor heaps\n");
        solo5_abort();
    }
    if (flag("how=collect")) {
        print("Fatal error: allocation failure during minor GC\n");
        solo5_abort();
    }
    if (flag("how=memory"))
        ABORT("Not enough memory");
    ABORT("asked to");
}
