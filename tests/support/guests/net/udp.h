#pragma once

#include "nic.h"

/* Sends the data that already stands in packet->data. */
void udp_send(const struct nic *nic, struct udp *packet, const uint8_t to_mac[6], uint32_t source,
    uint16_t source_port, uint32_t destination, uint16_t destination_port, size_t size);

/* Echoes what comes to port 7 and to every --udp=PORT; prints what comes back to --send=. */
void udp_handle(const struct nic *nic, struct udp *packet, size_t size);

#define UDP_SEND_PORT 7777 /* where datagrams of --send= come from */

/* Whether datagrams to a port are answered. */
bool udp_serves(uint16_t port);
