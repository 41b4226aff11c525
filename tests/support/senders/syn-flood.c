/* Sends the first packets of TCP connections, each of another client: random addresses of 198.18.0.0/15 and ports.
 *
 *     syn-flood LINK MAC ADDRESS PORT RATE SECONDS
 *
 * LINK is a veth of this network namespace, MAC that of its other end, and RATE the packets per second (0: as many as
 * possible). Frames are made before the first is sent. It prints one line of JSON: packets sent, those that the kernel
 * refused, seconds, and seconds of the processor in the kernel, which has each packet until it is dropped or queued.
 * It sends over no other kind of link, and at most 2 million packets in 30 seconds. */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <netpacket/packet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#define COUNT_MAX 2000000
#define SECONDS_MAX 30
#define BATCH 64

struct frame {
    struct ether_header link;
    struct iphdr ip;
    struct tcphdr tcp;
} __attribute__((packed));

static uint64_t state = 88172645463325252; /* xorshift64: the same frames in each run */

static uint64_t random_number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint32_t sum(const void *of, size_t bytes, uint32_t from)
{
    const unsigned char *at = of;
    for (size_t i = 0; i < bytes; i += 2)
        from += at[i] << 8 | at[i + 1];
    return from;
}

static uint16_t checksum(uint32_t from)
{
    while (from >> 16)
        from = (from & 0xffff) + (from >> 16);
    return htons(~from & 0xffff);
}

static struct frame made(const struct frame *like)
{
    struct frame frame = *like;
    uint64_t chosen = random_number();
    frame.ip.saddr = htonl(0xc6120000 | (chosen & 0x1ffff)); /* 198.18.0.0/15 */
    frame.ip.id = htons(chosen >> 17 & 0xffff);
    frame.ip.check = 0;
    frame.ip.check = checksum(sum(&frame.ip, sizeof frame.ip, 0));
    frame.tcp.source = htons(1024 + (chosen >> 33) % 64512);
    frame.tcp.seq = random_number();
    frame.tcp.check = 0;
    uint32_t pseudo = sum(&frame.ip.saddr, 8, IPPROTO_TCP + sizeof frame.tcp);
    frame.tcp.check = checksum(sum(&frame.tcp, sizeof frame.tcp, pseudo));
    return frame;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static double kernel_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_stime.tv_sec + used.ru_stime.tv_usec / 1e6;
}

static long number(const char *text, long least, long most)
{
    char *end;
    long found = strtol(text, &end, 10);
    if (!*text || *end || found < least || found > most)
        errx(2, "%s: expected %ld to %ld", text, least, most);
    return found;
}

/* Opens a socket that sends over a veth, without its queue. */
static int opened(const char *link, struct frame *like)
{
    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    if (fd < 0)
        err(1, "socket");
    struct ethtool_drvinfo driver = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq request = {.ifr_data = (char *)&driver};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", link);
    if (ioctl(fd, SIOCETHTOOL, &request) || strcmp(driver.driver, "veth"))
        errx(2, "%s: expected a veth", link);
    if (ioctl(fd, SIOCGIFHWADDR, &request))
        err(1, "%s", link);
    memcpy(like->link.ether_shost, request.ifr_hwaddr.sa_data, ETH_ALEN);
    int one = 1;
    if (setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one))
        err(1, "PACKET_QDISC_BYPASS");
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(link)};
    if (bind(fd, (struct sockaddr *)&at, sizeof at))
        err(1, "%s", link);
    return fd;
}

int main(int argc, char **argv)
{
    struct frame like = {
        .link = {.ether_type = htons(ETHERTYPE_IP)},
        .ip = {.version = 4, .ihl = 5, .tot_len = htons(40), .frag_off = htons(IP_DF), .ttl = 64, .protocol = IPPROTO_TCP},
        .tcp = {.doff = 5, .syn = 1, .window = htons(64240)},
    };
    if (argc != 7)
        errx(2, "expected LINK MAC ADDRESS PORT RATE SECONDS");
    unsigned char *mac = like.link.ether_dhost;
    if (sscanf(argv[2], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) != 6)
        errx(2, "%s: expected a MAC", argv[2]);
    if (inet_pton(AF_INET, argv[3], &like.ip.daddr) != 1)
        errx(2, "%s: expected an IPv4 address", argv[3]);
    like.tcp.dest = htons(number(argv[4], 1, 65535));
    long rate = number(argv[5], 0, 1000000), time_s = number(argv[6], 1, SECONDS_MAX);
    long count = rate && rate * time_s < COUNT_MAX ? rate * time_s : COUNT_MAX;
    int fd = opened(argv[1], &like);
    struct frame *frames = calloc(count, sizeof *frames);
    if (!frames)
        err(1, "calloc");
    for (long i = 0; i < count; i++)
        frames[i] = made(&like);

    struct iovec parts[BATCH];
    struct mmsghdr batch[BATCH] = {0};
    long sent = 0, refused = 0;
    double begun = seconds(), before = kernel_seconds(), took = 0;
    while (sent < count && (took = seconds() - begun) < time_s) {
        long due = rate ? (long)(took * rate) + 1 : count;
        long many = (due < count ? due : count) - sent;
        if (many <= 0) {
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
            continue;
        }
        if (many > BATCH)
            many = BATCH;
        for (long i = 0; i < many; i++) {
            parts[i] = (struct iovec){.iov_base = frames + sent + i, .iov_len = sizeof *frames};
            batch[i].msg_hdr = (struct msghdr){.msg_iov = parts + i, .msg_iovlen = 1};
        }
        int done = sendmmsg(fd, batch, many, 0);
        if (done > 0)
            sent += done;
        else if (errno == ENOBUFS || errno == EAGAIN || errno == EINTR)
            refused++;
        else
            err(1, "sendmmsg");
    }
    printf("{\"sent\": %ld, \"refused\": %ld, \"seconds\": %.3f, \"kernel_seconds\": %.3f}\n", sent, refused,
           seconds() - begun, kernel_seconds() - before);
}
