/* A host on one network that tells its disk's first sector when it starts. */
#include "sectors.h"
#include "responder.h"

MANIFEST(NET("service"), BLOCK("storage"));

int guest_main(void)
{
    static struct nic service;
    sectors_announce(2);
    print("sector 0: '%s'\n", sector_read(2, 0));
    nic_open(&service, 1, "");
    responder_run(&service, 1);
}
