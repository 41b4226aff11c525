/* A network device with an IPv4 address. Addresses are kept in host order. */
#pragma once

#include "frame.h"
#include "guest.h"

#define FRAME_MAX 9216

struct nic {
    unsigned handle;
    const uint8_t *mac;
    uint32_t address, mask, gateway;
    bool gateway_known;
    uint8_t gateway_mac[6];
};

extern const uint8_t broadcast_mac[6];

/* Prints the device's MAC and MTU. */
void nic_announce(unsigned handle);
/* Takes --PREFIXipv4=A.B.C.D/LEN (10.0.0.2/24) and --PREFIXipv4-gateway=A, and announces. */
void nic_open(struct nic *nic, unsigned handle, const char *prefix);

/* Answers for our address; learns the gateway's. */
void arp_handle(struct nic *nic, const struct arp *request);
/* Asks who has `target`, as `sender`: our own address, unless we lie. */
void arp_ask(const struct nic *nic, uint32_t sender, uint32_t target);

/* Fills in the headers below the payload of `size` bytes, and sends. The checksum over the payload
 * is the caller's. */
void ipv4_send(const struct nic *nic, struct ipv4 *packet, const uint8_t to_mac[6],
    uint32_t source, uint32_t destination, uint8_t protocol, size_t size);

/* The Internet checksum of the data, and of a pseudo-header if the protocol is not 0. */
uint16_t checksum(const void *data, size_t size, uint32_t source, uint32_t destination,
    uint8_t protocol);

uint32_t to_address(const char *text);
void to_mac(const char *text, uint8_t mac[6]);
/* "A.B.C.D", in one of a few buffers used in turn. */
const char *address_text(uint32_t address);
