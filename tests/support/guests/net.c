/* A host on one network: see net/responder.h. */
#include "responder.h"

MANIFEST(NET("service"));

int guest_main(void)
{
    static struct nic service;
    nic_open(&service, 1, "");
    responder_run(&service, 1);
}
