/* As many disks as there can be: prints the first sector of each. */
#include "sectors.h"

MANIFEST(SIXTY_THREE(BLOCK, "storage"));

int guest_main(void)
{
    for (unsigned handle = 1; handle <= device_count(); handle++)
        print("%s: '%s'\n", device(handle)->name, sector_read(handle, 0));
    return 0;
}
