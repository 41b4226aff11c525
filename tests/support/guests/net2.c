/* A host on two networks. The second takes its addresses from --management-ipv4=…, as a MirageOS
 * stack of the group "management" does. */
#include "responder.h"

MANIFEST(NET("service"), NET("management"));

int guest_main(void)
{
    static struct nic nics[2];
    nic_open(&nics[0], 1, "");
    nic_open(&nics[1], 2, "management-");
    responder_run(nics, 2);
}
