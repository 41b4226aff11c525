#include "ipv6.h"

#include "responder.h"
#include "udp.h"

enum { PROTOCOL_ICMP6 = 58 };
enum { ECHO_REQUEST = 128, ECHO_REPLY = 129, SOLICIT = 135, ADVERTISE = 136 };
enum { ROUTER_SOLICIT = 133, ROUTER_ADVERT = 134, PREFIX_INFORMATION = 3, AUTONOMOUS = 0x40 };
#define RETRY SECOND
enum { SOLICITED_OVERRIDE = 0x60, TARGET_LINK_LAYER = 2 };

struct ipv6 {
    struct ethernet ethernet;
    uint32_t version;
    uint16_t size;
    uint8_t next, hops, source[16], destination[16];
    uint8_t data[];
} PACKED;

struct solicitation { /* and advertisement */
    uint8_t type, code;
    uint16_t checksum;
    uint8_t flags, reserved[3], target[16], option, option_size, mac[6];
} PACKED;

struct datagram {
    uint16_t source, destination, size, checksum;
} PACKED;

static bool opened;
static uint8_t address[16];

static unsigned hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return (unsigned)(c - '0');
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10) : 16;
}

/* Groups before "::" from the left, those after it to the right. */
static void to_address6(const char *text, uint8_t result[16])
{
    unsigned groups[8], count = 0, gap = 8;
    while (count < 8 && (hex_value(*text) < 16 || *text == ':')) {
        if (text[0] == ':' && text[1] == ':') {
            gap = count;
            text += 2;
            continue;
        }
        text += *text == ':';
        unsigned group = 0;
        while (hex_value(*text) < 16)
            group = group << 4 | hex_value(*text++);
        groups[count++] = group;
    }
    memset(result, 0, 16);
    for (unsigned i = 0; i < count; i++) {
        unsigned place = i < gap ? i : i + 8 - count;
        result[2 * place] = (uint8_t)(groups[i] >> 8);
        result[2 * place + 1] = (uint8_t)groups[i];
    }
}

/* Over the addresses, which precede the data, and the data; size and protocol are added. */
static uint16_t checksum6(const struct ipv6 *packet, size_t size, uint8_t protocol)
{
    uint16_t part = checksum(packet->source, 32 + size, 0, 0, 0);
    uint32_t total = (uint16_t)~net16(part) + (uint32_t)size + protocol;
    while (total >> 16)
        total = (total & 0xffff) + (total >> 16);
    return net16((uint16_t)~total);
}

/* A router solicitation without an address, as MirageOS sends it. */
static void router_solicit(const struct nic *nic)
{
    struct {
        struct ipv6 ip;
        uint8_t data[8];
    } PACKED packet = {
        .ip = { .ethernet.to = { 0x33, 0x33, 0, 0, 0, 2 },
            .ethernet.type = net16(ETHERTYPE_IPV6),
            .version = net32(6U << 28),
            .size = net16(8),
            .next = PROTOCOL_ICMP6,
            .hops = 255,
            .destination = { 0xff, 0x02, [15] = 2 } },
        .data = { ROUTER_SOLICIT },
    };
    memcpy(packet.ip.ethernet.from, nic->mac, 6);
    uint16_t sum = checksum6(&packet.ip, 8, PROTOCOL_ICMP6);
    memcpy(packet.data + 2, &sum, sizeof sum);
    net_write(nic->handle, &packet, sizeof packet);
}

/* The prefix of a router advertisement by which a host makes its address; NULL without one. */
static const uint8_t *autonomous_prefix(const struct ipv6 *packet, size_t received)
{
    size_t size = net16(packet->size);
    if (received < sizeof *packet || size > received - sizeof *packet || size < 16
        || packet->ethernet.type != net16(ETHERTYPE_IPV6) || packet->next != PROTOCOL_ICMP6
        || packet->data[0] != ROUTER_ADVERT)
        return NULL;
    for (size_t at = 16; at + 8 <= size && packet->data[at + 1]; at += 8U * packet->data[at + 1]) {
        const uint8_t *option = packet->data + at;
        if (option[0] == PREFIX_INFORMATION && at + 32 <= size && option[2] == 64 && option[3] & AUTONOMOUS)
            return option + 16;
    }
    return NULL;
}

static void configure(const struct nic *nic)
{
    static uint8_t frame[FRAME_MAX] __attribute__((aligned(16)));
    const uint8_t *m = nic->mac, *prefix = NULL;
    while (!prefix) {
        uint64_t deadline = now() + RETRY;
        router_solicit(nic);
        while (!prefix && now() < deadline) {
            size_t size = net_read(nic->handle, frame, sizeof frame);
            if (size)
                prefix = autonomous_prefix((struct ipv6 *)frame, size);
            else
                wait_until(deadline);
        }
    }
    const uint8_t identifier[8] = { m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5] };
    memcpy(address, prefix, 8);
    memcpy(address + 8, identifier, 8);
    const uint8_t *a = address;
    print("%s: slaac ipv6 %02x%02x:%02x%02x:%02x%02x:%02x%02x", device(nic->handle)->name, a[0], a[1], a[2], a[3],
        a[4], a[5], a[6], a[7]);
    print(":%02x%02x:%02x%02x:%02x%02x:%02x%02x\n", a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15]);
}

void ipv6_open(const struct nic *nic)
{
    const char *text = option("--ipv6=", 0);
    if (!text)
        return;
    if (text[0] == 's') {
        configure(nic);
    } else {
        to_address6(text, address);
        print("%s: ipv6 %s\n", device(nic->handle)->name, text);
    }
    opened = true;
}

/* Turns a packet round; its checksum is at this place of the data. */
static void reply(const struct nic *nic, struct ipv6 *packet, size_t size, size_t place)
{
    uint16_t sum = 0;
    memcpy(packet->ethernet.to, packet->ethernet.from, 6);
    memcpy(packet->ethernet.from, nic->mac, 6);
    memcpy(packet->destination, packet->source, 16);
    memcpy(packet->source, address, 16);
    packet->hops = 255;
    packet->size = net16((uint16_t)size);
    memcpy(packet->data + place, &sum, sizeof sum);
    sum = checksum6(packet, size, packet->next);
    memcpy(packet->data + place, &sum, sizeof sum);
    net_write(nic->handle, packet, sizeof *packet + size);
}

static void icmp6_handle(const struct nic *nic, struct ipv6 *packet, size_t size)
{
    struct solicitation *message = (struct solicitation *)packet->data;
    if (message->type == ECHO_REQUEST && !memcmp(packet->destination, address, 16)) {
        message->type = ECHO_REPLY;
        reply(nic, packet, size, offsetof(struct solicitation, checksum));
    } else if (message->type == SOLICIT && size >= 24 && !memcmp(message->target, address, 16)) {
        message->type = ADVERTISE;
        message->flags = SOLICITED_OVERRIDE;
        message->option = TARGET_LINK_LAYER;
        message->option_size = 1;
        memcpy(message->mac, nic->mac, 6);
        reply(nic, packet, sizeof *message, offsetof(struct solicitation, checksum));
    }
}

static void udp6_handle(const struct nic *nic, struct ipv6 *packet, size_t size)
{
    struct datagram *datagram = (struct datagram *)packet->data;
    uint16_t port = datagram->destination;
    if (memcmp(packet->destination, address, 16) || !udp_serves(net16(port)))
        return;
    datagram->destination = datagram->source;
    datagram->source = port;
    reply(nic, packet, size, offsetof(struct datagram, checksum));
}

void ipv6_handle(const struct nic *nic, uint8_t *frame, size_t received)
{
    struct ipv6 *packet = (struct ipv6 *)frame;
    size_t size = net16(packet->size);
    if (!opened || received < sizeof *packet || size > received - sizeof *packet || size < 8)
        return;
    if (packet->next == PROTOCOL_ICMP6)
        icmp6_handle(nic, packet, size);
    else if (packet->next == PROTOCOL_UDP)
        udp6_handle(nic, packet, size);
}
