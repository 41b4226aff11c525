/* A host on one network that gets its address by DHCP, as a MirageOS image does by default, or takes
 * --ipv4= in its place. */
#include "dhcp.h"
#include "responder.h"

MANIFEST(NET("service"));

int guest_main(void)
{
    static struct nic service;
    if (option("--ipv4=", 0))
        nic_open(&service, 1, "");
    else
        dhcp_open(&service, 1);
    responder_run(&service, 1);
}
