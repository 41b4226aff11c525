#include "dhcp.h"

#include "udp.h"

enum { CLIENT_PORT = 68, SERVER_PORT = 67, BROADCAST_FLAG = 0x8000 };
enum { DISCOVER = 1, OFFER, REQUEST, DECLINE, ACK };
enum { MASK = 1, ROUTER = 3, DNS = 6, NAME = 12, DOMAIN = 15, MTU = 26, WISH = 50, KIND = 53, SERVER = 54,
    WANTED = 55, END = 255 };
#define COOKIE 0x63825363
#define RETRY SECOND

struct dhcp {
    struct udp udp;
    uint8_t operation, hardware, hardware_size, hops;
    uint32_t number;
    uint16_t seconds, flags;
    uint32_t client, yours, server, relay;
    uint8_t mac[16], unused[192];
    uint32_t cookie;
    uint8_t options[60];
} PACKED;

static struct dhcp message;
static union {
    struct dhcp dhcp;
    uint8_t frame[FRAME_MAX];
} reply;

static uint8_t *option_put(uint8_t *at, uint8_t code, const void *value, uint8_t size)
{
    *at++ = code;
    *at++ = size;
    memcpy(at, value, size);
    return at + size;
}

static void message_send(const struct nic *nic, uint8_t kind, uint32_t address, uint32_t server)
{
    static const uint8_t wanted[] = { MASK, ROUTER, DNS, NAME, DOMAIN, MTU };
    static const uint8_t everybody[6] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
    memset(&message, 0, sizeof message);
    message.operation = message.hardware = 1;
    message.hardware_size = 6;
    message.number = net32(0x5010);
    message.flags = net16(BROADCAST_FLAG);
    memcpy(message.mac, nic->mac, 6);
    message.cookie = net32(COOKIE);
    uint8_t *at = option_put(message.options, KIND, &kind, 1);
    at = option_put(at, WANTED, wanted, sizeof wanted);
    if (kind == REQUEST) {
        at = option_put(at, WISH, &address, 4);
        at = option_put(at, SERVER, &server, 4);
    }
    *at = END;
    udp_send(nic, &message.udp, everybody, 0, CLIENT_PORT, 0xffffffff, SERVER_PORT,
        sizeof message - sizeof message.udp);
}

/* The value of an option of the reply; NULL without one. */
static const uint8_t *option_find(uint8_t code, size_t size, unsigned *length)
{
    const uint8_t *at = reply.dhcp.options, *end = reply.frame + size;
    while (at + 2 <= end && *at != END) {
        if (*at == 0) {
            at++;
            continue;
        }
        *length = at[1];
        if (at + 2 + *length > end)
            break;
        if (*at == code)
            return at + 2;
        at += 2 + *length;
    }
    *length = 0;
    return NULL;
}

static uint32_t address_option(uint8_t code, size_t size)
{
    unsigned length;
    const uint8_t *value = option_find(code, size, &length);
    uint32_t address = 0;
    if (length >= 4)
        memcpy(&address, value, 4);
    return net32(address);
}

/* The size of the next reply of this kind before the deadline; 0: there is none. */
static size_t message_receive(const struct nic *nic, uint8_t kind, uint64_t deadline)
{
    size_t size;
    unsigned length;
    while (now() < deadline) {
        while ((size = net_read(nic->handle, reply.frame, sizeof reply.frame))) {
            const struct dhcp *d = &reply.dhcp;
            if (size < sizeof *d - sizeof d->options || d->udp.ip.ethernet.type != net16(ETHERTYPE_IPV4)
                || d->udp.ip.protocol != PROTOCOL_UDP || d->udp.destination != net16(CLIENT_PORT)
                || memcmp(d->mac, nic->mac, 6) || d->number != message.number)
                continue;
            const uint8_t *found = option_find(KIND, size, &length);
            if (length == 1 && *found == kind)
                return size;
        }
        wait_until(deadline);
    }
    return 0;
}

static void text_option(uint8_t code, size_t size, char text[64])
{
    unsigned length;
    const uint8_t *value = option_find(code, size, &length);
    length = length < 63 ? length : 63;
    if (value)
        memcpy(text, value, length);
    text[length] = 0;
}

void dhcp_open(struct nic *nic, unsigned handle)
{
    char name[64], domain[64];
    size_t size = 0;
    *nic = (struct nic) { .handle = handle, .mac = device(handle)->net.mac };
    nic_announce(handle);
    while (!size) {
        message_send(nic, DISCOVER, 0, 0);
        if (!message_receive(nic, OFFER, now() + RETRY))
            continue;
        /* As MirageOS: the server is what `siaddr` of the offer names. */
        message_send(nic, REQUEST, reply.dhcp.yours, reply.dhcp.server);
        size = message_receive(nic, ACK, now() + RETRY);
    }
    nic->address = net32(reply.dhcp.yours);
    nic->mask = address_option(MASK, size);
    nic->gateway = address_option(ROUTER, size);
    text_option(NAME, size, name);
    text_option(DOMAIN, size, domain);
    print("%s: dhcp ipv4 %s mask %s gateway %s dns %s name %s domain %s\n", device(handle)->name,
        address_text(nic->address), address_text(nic->mask), address_text(nic->gateway),
        address_text(address_option(DNS, size)), name, domain);
    arp_ask(nic, nic->address, nic->address);
}
