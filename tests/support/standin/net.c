#include "net.h"

#include <assert.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <linux/if_tun.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "abi.h"

static struct device *declared(struct manifest *manifest, const char *name)
{
    struct device *d = manifest_find(manifest, name, DEVICE_NET);
    if (!d)
        warnx("Resource not declared in manifest: '%s'", name);
    return d;
}

/* 0 or an errno: attaching to a name that does not exist would make a tap, so look first. */
static int require_up(const char *name)
{
    struct ifaddrs *all;
    int error = ENOENT;
    if (getifaddrs(&all) == -1)
        return errno;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if (strcmp(i->ifa_name, name) == 0) {
            error = i->ifa_flags & (IFF_UP | IFF_RUNNING) ? 0 : ENETDOWN;
            break;
        }
    freeifaddrs(all);
    return error;
}

static struct ifreq request(const char *name)
{
    struct ifreq r = { 0 };
    memccpy(r.ifr_name, name, 0, IFNAMSIZ - 1);
    return r;
}

/* A descriptor, or -1 and errno. */
static int open_tap(const char *name)
{
    struct ifreq r = request(name);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (fd == -1)
        return -1;
    r.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (ioctl(fd, TUNSETIFF, &r) == -1) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Frames larger than the guest's buffer would be cut. Without CAP_NET_ADMIN this fails, and the
 * real tenders do not mind either. */
static void offloads_off(int socket_fd, const char *name)
{
    static const uint32_t commands[] = { ETHTOOL_SGRO, ETHTOOL_SGSO };
    for (unsigned i = 0; i < 2; i++) {
        struct ethtool_value value = { .cmd = commands[i], .data = 0 };
        struct ifreq r = request(name);
        r.ifr_data = (void *)&value;
        ioctl(socket_fd, SIOCETHTOOL, &r);
    }
}

/* The MTU, or -1 and errno. */
static int tap_mtu(const char *name)
{
    struct ifreq r = request(name);
    int socket_fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (socket_fd == -1)
        return -1;
    int result = ioctl(socket_fd, SIOCGIFMTU, &r);
    if (result == 0)
        offloads_off(socket_fd, name);
    close(socket_fd);
    return result == 0 ? r.ifr_mtu : -1;
}

/* 0 or an errno. */
static int attach_by_name(struct device *d, const char *name)
{
    int error, fd, mtu;
    if (strlen(name) >= IFNAMSIZ)
        return ENAMETOOLONG;
    if ((error = require_up(name)))
        return error;
    if ((fd = open_tap(name)) == -1 || (mtu = tap_mtu(name)) == -1)
        return errno;
    d->fd = fd;
    d->net.mtu = (uint16_t)mtu;
    d->attached = true;
    return 0;
}

static bool attach(struct device *d, const char *name)
{
    /* Since 0.10 no tender can use an inherited descriptor: it learns no MTU, and fails without an
     * error number. */
    bool descriptor = name[0] == '@';
    int error = descriptor ? 0 : attach_by_name(d, name);
    if (descriptor || error)
        warnx("Could not attach interface: %s: %s", name, strerror(error));
    return !descriptor && !error;
}

static bool set_mac(struct device *d, const uint8_t mac[6])
{
    memcpy(d->net.mac, mac, 6);
    return true;
}

bool net_option(const char *word, struct manifest *manifest)
{
    char name[68], interface[20];
    uint8_t m[6];
    struct device *d;
    if (sscanf(word, "--net:%" NAME_MAX_LENGTH "[A-Za-z0-9]=%19s", name, interface) == 2)
        return (d = declared(manifest, name)) && attach(d, interface);
    if (sscanf(word,
            "--net-mac:%" NAME_MAX_LENGTH "[A-Za-z0-9]=%2" SCNx8 ":%2" SCNx8 ":%2" SCNx8 ":%2" SCNx8
            ":%2" SCNx8 ":%2" SCNx8,
            name, &m[0], &m[1], &m[2], &m[3], &m[4], &m[5])
        == 7)
        return (d = declared(manifest, name)) && set_mac(d, m);
    return false;
}

static void random_mac(uint8_t mac[6])
{
    int fd = open("/dev/urandom", O_RDONLY);
    if (fd == -1)
        err(1, "Could not open /dev/urandom");
    ssize_t n = read(fd, mac, 6);
    assert(n == 6);
    close(fd);
    mac[0] = (uint8_t)((mac[0] & 0xfe) | 0x02);
}

void net_setup(struct manifest *manifest)
{
    static const uint8_t unset[6];
    FOR_EACH_ATTACHED(d, manifest, DEVICE_NET)
    {
        if (memcmp(d->net.mac, unset, sizeof unset) == 0)
            random_mac(d->net.mac);
        abi_poll_add(d->fd, (uint64_t)(d - manifest->device));
    }
}
