#include "sender.h"

#include "tcp.h"
#include "udp.h"

#define DISCARD_PORT 9
#define BROADCAST 0xffffffff
#define ARP_RETRY (SECOND / 20)
#define INTERVAL (SECOND / 5)

static struct {
    struct udp packet;
    char data[64];
} datagram;

static uint16_t port_of(const char *text)
{
    while (*text && *text != ':')
        text++;
    return *text ? (uint16_t)to_number(text + 1) : 0;
}

/* Everything goes by way of the gateway, which is there to forward. */
static void send_to(const struct nic *nic, const char *target, unsigned number)
{
    size_t size = format(datagram.packet.data, sizeof datagram.data, "datagram %u", number);
    udp_send(nic, &datagram.packet, nic->gateway_mac, nic->address, UDP_SEND_PORT,
        to_address(target), port_of(target), size);
}

/* To everybody, so that whoever watches the wire sees what got through. */
static void broadcast(const struct nic *nic, uint32_t source)
{
    size_t size = format(datagram.packet.data, sizeof datagram.data, "spoofed");
    udp_send(nic, &datagram.packet, broadcast_mac, source, DISCARD_PORT, BROADCAST, DISCARD_PORT, size);
}

static void broadcast_as(struct nic nic, const char *mac_text)
{
    uint8_t mac[6];
    to_mac(mac_text, mac);
    nic.mac = mac;
    broadcast(&nic, nic.address);
}

static void send_all(const struct nic *nic, unsigned number)
{
    const char *value;
    if ((value = option("--send=", 0)))
        send_to(nic, value, number);
    if ((value = option("--ask=", 0)))
        tcp_ask(nic, to_address(value), port_of(value));
    if ((value = option("--spoof-ip=", 0)))
        broadcast(nic, to_address(value));
    if ((value = option("--spoof-mac=", 0)))
        broadcast_as(*nic, value);
    if ((value = option("--spoof-arp=", 0)))
        arp_ask(nic, to_address(value), to_address(value));
}

uint64_t sender_tick(const struct nic *nic)
{
    static uint64_t due;
    static unsigned number;
    bool calls = option("--send=", 0) || option("--ask=", 0);
    if (!calls && !option("--spoof-", 0))
        return FOREVER;
    if (now() < due)
        return due;
    if (calls && !nic->gateway_known) {
        arp_ask(nic, nic->address, nic->gateway);
        return due = now() + ARP_RETRY;
    }
    send_all(nic, ++number);
    return due = now() + INTERVAL;
}
