/* The layout of frames: Ethernet, ARP, IPv4 and what it carries. All integers in network order. */
#pragma once

#include <stdint.h>

#define PACKED __attribute__((packed))

enum { ETHERTYPE_IPV4 = 0x0800, ETHERTYPE_ARP = 0x0806, ETHERTYPE_IPV6 = 0x86dd };
enum { PROTOCOL_ICMP = 1, PROTOCOL_TCP = 6, PROTOCOL_UDP = 17 };
enum { ARP_REQUEST = 1, ARP_REPLY = 2 };

struct ethernet {
    uint8_t to[6], from[6];
    uint16_t type;
} PACKED;

struct arp {
    struct ethernet ethernet;
    uint16_t hardware, protocol;
    uint8_t hardware_size, protocol_size;
    uint16_t operation;
    uint8_t sender_mac[6];
    uint32_t sender;
    uint8_t target_mac[6];
    uint32_t target;
} PACKED;

struct ipv4 {
    struct ethernet ethernet;
    uint8_t version_and_words, service;
    uint16_t size, identification, fragment;
    uint8_t time_to_live, protocol;
    uint16_t checksum;
    uint32_t source, destination;
} PACKED;

struct icmp {
    struct ipv4 ip;
    uint8_t type, code;
    uint16_t checksum;
    uint32_t rest;
} PACKED;

struct udp {
    struct ipv4 ip;
    uint16_t source, destination, size, checksum;
    char data[];
} PACKED;

struct tcp {
    struct ipv4 ip;
    uint16_t source, destination;
    uint32_t sequence, acknowledged;
    uint8_t words, flags;
    uint16_t window, checksum, urgent;
    uint8_t data[];
} PACKED;

#define ETHERNET_SIZE sizeof(struct ethernet)
#define IPV4_SIZE (sizeof(struct ipv4) - ETHERNET_SIZE)

static inline uint16_t net16(uint16_t value) { return __builtin_bswap16(value); }
static inline uint32_t net32(uint32_t value) { return __builtin_bswap32(value); }
