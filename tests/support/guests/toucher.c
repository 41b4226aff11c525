/* Touches mb=N MiB of its memory (all it has), then sleeps, or does as told: then=exit, or then=more, which ends as
 * an OCaml program does that needs more than there is. */
#include "guest.h"

MANIFEST();

#define MIB (1UL << 20)
#define PAGE 4096
#define STACK (64 * 1024) /* at the end of memory, and in use */
#define OCAML_UNCAUGHT 2

int guest_main(void)
{
    volatile char *start = free_memory();
    uint64_t room = memory_size() - STACK - (uint64_t)start;
    uint64_t wanted = option_number("mb=", room / MIB);
    print("memory %lu bytes, %lu MiB free\n", memory_size(), room / MIB);
    if (wanted > room / MIB)
        ABORT("mb= is more than there is");
    for (uint64_t at = 0; at < wanted * MIB; at += PAGE) {
        start[at] = 1;
        if ((at + PAGE) % MIB == 0)
            print("touched %lu MiB\n", (at + PAGE) / MIB);
    }
    print("touched all %lu MiB\n", wanted);
    if (flag("then=more")) {
        print("Fatal error: exception Out_of_memory\n");
        return OCAML_UNCAUGHT;
    }
    while (!flag("then=exit"))
        wait_until(FOREVER);
    return 0;
}
