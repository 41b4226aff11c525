/* Makes the CPU fault: what=instruction (an undefined one), what=read or what=write (an address that
 * is nobody's), what=text (a write to its own code, which only the host forbids), what=syscall (one
 * that no spt guest may make). */
#include "guest.h"

MANIFEST();

#define GETPID 39
#define NOBODYS ((volatile char *)(1UL << 40))

int guest_main(void)
{
    print("trapping\n");
    if (flag("what=read"))
        return *NOBODYS;
    if (flag("what=write"))
        *NOBODYS = 1;
    else if (flag("what=text"))
        *(volatile char *)guest_main = 1;
    else if (flag("what=syscall"))
        __asm__ volatile("syscall" : : "a"(GETPID) : "rcx", "r11", "memory");
    else
        __asm__ volatile("ud2");
    return 0;
}
