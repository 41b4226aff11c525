/* As many network devices as there can be: prints what the tender gave each. */
#include "responder.h"

MANIFEST(SIXTY_THREE(NET, "service"));

int guest_main(void)
{
    for (unsigned handle = 1; handle <= device_count(); handle++)
        nic_announce(handle);
    return 0;
}
