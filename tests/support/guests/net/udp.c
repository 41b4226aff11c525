#include "udp.h"

#include "filled.h"
#include "responder.h"

#define ECHO_PORT 7
#define FILLED_TEXT 16 /* bytes of a number; a frame has room for them */
#define HEADER (sizeof(struct udp) - sizeof(struct ipv4))

void udp_send(const struct nic *nic, struct udp *packet, const uint8_t to_mac[6], uint32_t source,
    uint16_t source_port, uint32_t destination, uint16_t destination_port, size_t size)
{
    packet->source = net16(source_port);
    packet->destination = net16(destination_port);
    packet->size = net16((uint16_t)(HEADER + size));
    packet->checksum = 0;
    packet->checksum
        = checksum(&packet->source, HEADER + size, source, destination, PROTOCOL_UDP) ?: 0xffff;
    ipv4_send(nic, &packet->ip, to_mac, source, destination, PROTOCOL_UDP, HEADER + size);
}

bool udp_serves(uint16_t port)
{
    const char *wanted;
    for (unsigned i = 0; (wanted = option("--udp=", i)); i++)
        if (to_number(wanted) == port)
            return true;
    return port == ECHO_PORT || (port == FILLED_PORT && option("--fill=", 0));
}

static void print_reply(const struct udp *packet, size_t size)
{
    char text[256];
    size = size < sizeof text ? size : sizeof text - 1;
    memcpy(text, packet->data, size);
    text[size] = 0;
    print("reply from %s:%u: '%s'\n", address_text(net32(packet->ip.source)), net16(packet->source),
        text);
}

void udp_handle(const struct nic *nic, struct udp *packet, size_t size)
{
    uint16_t port = net16(packet->destination), data = net16(packet->size);
    uint32_t from = net32(packet->ip.source);
    uint8_t mac[6];
    if (size < HEADER || data < HEADER || data > size)
        return;
    data = (uint16_t)(data - HEADER);
    note("udp %s:%u to port %u, %u bytes\n", address_text(from), net16(packet->source), port, data);
    if (port == UDP_SEND_PORT && option("--send=", 0))
        return print_reply(packet, data);
    if (!udp_serves(port))
        return;
    if (port == FILLED_PORT && option("--fill=", 0))
        data = (uint16_t)format(packet->data, FILLED_TEXT, "%u", filled_intact());
    memcpy(mac, packet->ip.ethernet.from, 6);
    udp_send(nic, packet, mac, nic->address, port, from, net16(packet->source), data);
}
