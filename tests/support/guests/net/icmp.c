#include "icmp.h"

#include "responder.h"

enum { ECHO_REPLY = 0, ECHO_REQUEST = 8 };

void icmp_handle(const struct nic *nic, struct icmp *packet, size_t size)
{
    uint8_t mac[6];
    uint32_t from = net32(packet->ip.source);
    if (size < sizeof *packet - sizeof packet->ip || packet->type != ECHO_REQUEST)
        return;
    note("ping from %s, %u bytes\n", address_text(from), (unsigned)size);
    memcpy(mac, packet->ip.ethernet.from, 6);
    packet->type = ECHO_REPLY;
    packet->checksum = 0;
    packet->checksum = checksum(&packet->type, size, 0, 0, 0);
    ipv4_send(nic, &packet->ip, mac, nic->address, from, PROTOCOL_ICMP, size);
}
