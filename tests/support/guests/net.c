/* A host on one network: see net/responder.h. */
#include "ipv6.h"
#include "responder.h"

MANIFEST(NET("service"));

int guest_main(void)
{
    static struct nic service;
    nic_open(&service, 1, "");
    ipv6_open(&service);
    responder_run(&service, 1);
}
