#include "nic.h"

const uint8_t broadcast_mac[6] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };

/* --- addresses as text --- */

uint32_t to_address(const char *text)
{
    uint32_t address = 0;
    for (unsigned part = 0; part < 4; part++) {
        address = address << 8 | (to_number(text) & 0xff);
        while (*text >= '0' && *text <= '9')
            text++;
        text += *text == '.';
    }
    return address;
}

static uint8_t hex_digit(char c) { return (uint8_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10); }

void to_mac(const char *text, uint8_t mac[6])
{
    for (unsigned i = 0; i < 6; i++)
        mac[i] = (uint8_t)(hex_digit(text[3 * i]) << 4 | hex_digit(text[3 * i + 1]));
}

const char *address_text(uint32_t a)
{
    static char texts[4][16];
    static unsigned turn;
    char *text = texts[turn++ % 4];
    format(text, 16, "%u.%u.%u.%u", a >> 24, a >> 16 & 0xff, a >> 8 & 0xff, a & 0xff);
    return text;
}

/* --- the device --- */

void nic_announce(unsigned handle)
{
    const struct device *d = device(handle);
    const uint8_t *m = d->net.mac;
    print("%s: mac %02x:%02x:%02x:%02x:%02x:%02x mtu %u\n", d->name, m[0], m[1], m[2], m[3], m[4],
        m[5], (unsigned)d->net.mtu);
}

static unsigned prefix_length(const char *text)
{
    while (*text && *text != '/')
        text++;
    return *text ? (unsigned)to_number(text + 1) : 32;
}

void nic_open(struct nic *nic, unsigned handle, const char *prefix)
{
    char name[64];
    format(name, sizeof name, "--%sipv4=", prefix);
    const char *address = option(name, 0) ?: "10.0.0.2/24";
    format(name, sizeof name, "--%sipv4-gateway=", prefix);
    const char *gateway = option(name, 0);
    unsigned length = prefix_length(address);
    *nic = (struct nic) {
        .handle = handle,
        .mac = device(handle)->net.mac,
        .address = to_address(address),
        .mask = length ? ~0U << (32 - length) : 0,
        .gateway = gateway ? to_address(gateway) : 0,
    };
    nic_announce(handle);
    print("%s: ipv4 %s/%u gateway %s\n", device(handle)->name, address_text(nic->address), length,
        gateway ? address_text(nic->gateway) : "none");
    arp_ask(nic, nic->address, nic->address); /* tells bridges and neighbours where we are */
}

/* --- ARP --- */

static void arp_send(const struct nic *nic, uint16_t operation, const uint8_t to[6], uint32_t sender,
    uint32_t target)
{
    struct arp packet = {
        .ethernet.type = net16(ETHERTYPE_ARP),
        .hardware = net16(1),
        .protocol = net16(ETHERTYPE_IPV4),
        .hardware_size = 6,
        .protocol_size = 4,
        .operation = net16(operation),
        .sender = net32(sender),
        .target = net32(target),
    };
    memcpy(packet.ethernet.to, to, 6);
    memcpy(packet.ethernet.from, nic->mac, 6);
    memcpy(packet.sender_mac, nic->mac, 6);
    if (operation == ARP_REPLY)
        memcpy(packet.target_mac, to, 6);
    net_write(nic->handle, &packet, sizeof packet);
}

void arp_ask(const struct nic *nic, uint32_t sender, uint32_t target)
{
    arp_send(nic, ARP_REQUEST, broadcast_mac, sender, target);
}

void arp_handle(struct nic *nic, const struct arp *packet)
{
    uint32_t sender = net32(packet->sender);
    if (nic->gateway && sender == nic->gateway) {
        memcpy(nic->gateway_mac, packet->sender_mac, 6);
        nic->gateway_known = true;
    }
    if (packet->operation == net16(ARP_REQUEST) && net32(packet->target) == nic->address)
        arp_send(nic, ARP_REPLY, packet->sender_mac, nic->address, sender);
}

/* --- IPv4 --- */

static uint32_t sum(const void *data, size_t size)
{
    const uint8_t *byte = data;
    uint32_t total = 0;
    for (size_t i = 0; i < size; i++)
        total += i % 2 ? byte[i] : (uint32_t)byte[i] << 8;
    return total;
}

uint16_t checksum(const void *data, size_t size, uint32_t source, uint32_t destination,
    uint8_t protocol)
{
    uint32_t total = sum(data, size);
    if (protocol)
        total += (source >> 16) + (source & 0xffff) + (destination >> 16) + (destination & 0xffff)
            + protocol + (uint32_t)size;
    while (total >> 16)
        total = (total & 0xffff) + (total >> 16);
    return net16((uint16_t)~total);
}

void ipv4_send(const struct nic *nic, struct ipv4 *packet, const uint8_t to_mac[6], uint32_t source,
    uint32_t destination, uint8_t protocol, size_t size)
{
    static uint16_t identification;
    memcpy(packet->ethernet.to, to_mac, 6);
    memcpy(packet->ethernet.from, nic->mac, 6);
    packet->ethernet.type = net16(ETHERTYPE_IPV4);
    packet->version_and_words = 0x45;
    packet->service = 0;
    packet->size = net16((uint16_t)(IPV4_SIZE + size));
    packet->identification = net16(identification++);
    packet->fragment = net16(0x4000); /* do not fragment */
    packet->time_to_live = 64;
    packet->protocol = protocol;
    packet->checksum = 0;
    packet->source = net32(source);
    packet->destination = net32(destination);
    packet->checksum = checksum(&packet->version_and_words, IPV4_SIZE, 0, 0, 0);
    net_write(nic->handle, packet, sizeof *packet + size);
}
