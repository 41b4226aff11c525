#pragma once

#include "nic.h"

/* Takes --ipv6=ADDRESS/LEN, or --ipv6=slaac: it then waits for a router advertisement. Without it, the host has no
 * IPv6. */
void ipv6_open(const struct nic *nic);
/* Answers neighbour solicitations, echo requests and, on port 7 and every --udp=PORT, datagrams. */
void ipv6_handle(const struct nic *nic, uint8_t *frame, size_t size);
