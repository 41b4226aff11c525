/* A tender that a guest has taken over: executed in a tender's place, it tries what would harm another task or the
 * host, and prints what it got.
 *
 *     hostile [OPTION…] -- IMAGE victim          does nothing: a neighbour whose tap is free
 *     hostile [OPTION…] -- IMAGE network MAC     takes its tap, gives it a MAC address, and holds all sockets that it gets
 *     hostile [OPTION…] -- IMAGE unlock          gives up all locks that it has, and keeps its disks open
 *     hostile [OPTION…] -- IMAGE [PATH…]         the attacks; every PATH is opened as well
 *
 * Each line that begins with "got" is a success; "tried NAME" is printed for each attack, with how it ended. An attack
 * runs in a process of its own, since the filter of system calls may end it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fiemap.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/if_tun.h>
#include <linux/kvm.h>
#include <linux/loop.h>
#include <linux/memfd.h>
#include <linux/netlink.h>
#include <linux/nsfs.h>
#include <linux/pr.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <scsi/sg.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* From linux/falloc.h since 5.5, and not in glibc. */
#ifndef FS_IOC_RESVSP
struct space_resv { short l_type, l_whence; long long l_start, l_len; int l_sysid; unsigned l_pid; int l_pad[4]; };
#define FS_IOC_RESVSP _IOW(0x58, 40, struct space_resv)
#define FS_IOC_RESVSP64 _IOW(0x58, 42, struct space_resv)
#define FS_IOC_ZERO_RANGE _IOW(0x58, 57, struct space_resv)
#endif

enum { PIDS = 40000, LINKS = 400, SOCKETS = 1015, PATIENCE_MS = 60000, SPACE = 1 << 20 };

static struct shared {
    pid_t main;
    volatile int done;
} *shared;
static char **options, **paths;

static void say(const char *format, ...)
{
    char line[512];
    va_list values;
    va_start(values, format);
    int size = vsnprintf(line, sizeof line - 1, format, values);
    va_end(values);
    line[size] = '\n';
    if (write(1, line, size + 1) < 0)
        _exit(9);
}

static int foreign(pid_t pid) { return pid != shared->main && pid != (pid_t)syscall(SYS_getpid); }

static void signals(void)
{
    for (pid_t pid = 1; pid < PIDS; pid++)
        if (foreign(pid) && kill(pid, 0) == 0)
            say("got signal %d", pid);
}

static void limits(void)
{
    struct rlimit limit;
    for (pid_t pid = 1; pid < PIDS; pid++)
        if (foreign(pid) && prlimit(pid, RLIMIT_NOFILE, NULL, &limit) == 0)
            say("got limits %d", pid);
}

static void trace(void)
{
    for (pid_t pid = 1; pid < PIDS; pid++)
        if (foreign(pid) && ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0)
            say("got trace %d", pid);
}

static void memory(void)
{
    char byte;
    struct iovec here = { &byte, 1 }, there = { (void *)0x400000, 1 };
    for (pid_t pid = 1; pid < PIDS; pid++)
        if (foreign(pid) && (process_vm_readv(pid, &here, 1, &there, 1, 0) == 1 || errno == EFAULT))
            say("got memory %d", pid);
}

static void readable(const char *what, const char *path, int flags)
{
    int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    say("got %s %s", what, path);
    close(fd);
}

static void processes(void)
{
    static const char *names[] = { "mem", "environ", "maps", "fd", "root", "cwd", "io", "syscall" };
    char path[64];
    for (pid_t pid = 1; pid < PIDS; pid++) {
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        if (!foreign(pid) || access(path, F_OK) != 0)
            continue;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            snprintf(path, sizeof path, "/proc/%d/%s", pid, names[i]);
            readable("process", path, O_RDONLY);
        }
    }
}

static int is_mine(const char *link)
{
    for (char **option = options; *option && strcmp(*option, "--") != 0; option++) {
        const char *value = strchr(*option, '=');
        if (strncmp(*option, "--net:", 6) == 0 && value && strcmp(value + 1, link) == 0)
            return 1;
    }
    return 0;
}

static void tap(const char *name)
{
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    /* A tap that is in use is refused after its owner was checked. */
    if (ioctl(fd, TUNSETIFF, &request) == 0 || errno == EBUSY)
        say("got tap %s", name);
    close(fd);
}

static void taps(void)
{
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    for (int index = 1; any >= 0 && index < LINKS; index++) {
        struct ifreq request = { .ifr_ifindex = index };
        if (ioctl(any, SIOCGIFNAME, &request) == 0 && !is_mine(request.ifr_name))
            tap(request.ifr_name);
    }
    tap("hostile0");
}

static void links(void)
{
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    for (int index = 1; any >= 0 && index < LINKS; index++) {
        struct ifreq request = { .ifr_ifindex = index };
        if (ioctl(any, SIOCGIFNAME, &request) != 0 || ioctl(any, SIOCGIFFLAGS, &request) != 0)
            continue;
        if (ioctl(any, SIOCSIFFLAGS, &request) == 0)
            say("got link %s", request.ifr_name);
    }
}

static void files(void)
{
    for (char **path = paths; *path; path++) {
        readable("file", *path, O_RDONLY);
        readable("writable", *path, O_WRONLY);
    }
}

/* Whether what the task itself has, such as a disk that it writes, could become code. */
static void code_of(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && mmap(NULL, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) != MAP_FAILED)
        say("got code %s", path);
    close(fd);
}

static void code(void)
{
    for (char **option = options; *option && strcmp(*option, "--") != 0; option++) {
        const char *value = strchr(*option, '=');
        if (strncmp(*option, "--block:", 8) == 0 && value)
            code_of(value + 1);
        if (strcmp(option[1] ? option[1] : "", "--") == 0 && option[2])
            code_of(option[2]);
    }
}

/* Whether a disk could become larger than it was, and than its quota. */
static void growth(void)
{
    signal(SIGXFSZ, SIG_IGN);
    for (char **option = options; *option && strcmp(*option, "--") != 0; option++) {
        const char *value = strchr(*option, '=');
        int fd = strncmp(*option, "--block:", 8) == 0 && value ? open(value + 1, O_RDWR | O_CLOEXEC) : -1;
        struct stat status;
        if (fd < 0 || fstat(fd, &status) != 0)
            continue;
        if (pwrite(fd, "x", 1, status.st_size + (1 << 20)) == 1)
            say("got growth %s", value + 1);
        if (ftruncate(fd, status.st_size + (1 << 20)) == 0)
            say("got growth %s", value + 1);
        if (ftruncate(fd, status.st_size) != 0)
            say("got growth that stays %s", value + 1);
        close(fd);
    }
}

static short tap_flags = IFF_TAP | IFF_NO_PI;

/* Call `act` with its NIC's tap, and with each of its disks, opened as a tender does. */
static void on_own(const char *option, void (*act)(int, const char *))
{
    for (char **each = options; *each && strcmp(*each, "--") != 0; each++) {
        const char *value = strchr(*each, '=');
        if (strncmp(*each, option, strlen(option)) != 0 || !value)
            continue;
        int is_tap = strcmp(option, "--net:") == 0;
        int fd = open(is_tap ? "/dev/net/tun" : value + 1, O_RDWR | O_CLOEXEC);
        struct ifreq request = { .ifr_flags = tap_flags };
        strncpy(request.ifr_name, value + 1, IFNAMSIZ - 1);
        if (fd >= 0 && (!is_tap || ioctl(fd, TUNSETIFF, &request) == 0))
            act(fd, value + 1);
        close(fd);
    }
}

/* Space of the file system beyond the end of a disk: neither LimitFSIZE= nor the size of the file knows it. */
static void space_of(int fd, const char *path)
{
    struct space_resv space = { .l_start = SPACE, .l_len = SPACE };
    if (ioctl(fd, FS_IOC_RESVSP64, &space) == 0)
        say("got space %s", path);
}

static void space(void) { on_own("--block:", space_of); }

/* A lease keeps others from opening a disk, such as for a snapshot. */
static void lease_of(int fd, const char *path)
{
    if (fcntl(fd, F_SETLEASE, F_WRLCK) == 0)
        say("got lease %s", path);
    if (paths[0] && strcmp(paths[0], "lease") == 0) {
        signal(SIGIO, SIG_IGN); /* with which the kernel asks for the lease */
        say("leased");
        nanosleep(&(struct timespec){ .tv_sec = 3600 }, NULL);
    }
}

static void leases(void) { on_own("--block:", lease_of); }

/* Another file may then be attached to the number of the device. */
static void loop_of(int fd, const char *path)
{
    if (ioctl(fd, LOOP_CLR_FD, 0) == 0)
        say("got loop %s", path);
}

static void loops(void) { on_own("--block:", loop_of); }

static void tap_of(int fd, const char *name)
{
    struct ifreq request = { .ifr_hwaddr = { ARPHRD_ETHER, { 2, 0, 0, 0, 0, 1 } } };
    if (ioctl(fd, SIOCSIFHWADDR, &request) == 0)
        say("got address %s", name);
    if (ioctl(fd, TUNSETOWNER, getuid()) == 0)
        say("got owner %s", name);
}

static void own_tap(void) { on_own("--net:", tap_of); }

/* The kernel fills in a checksum at any place of a frame, after the rules have seen it. */
static void checksum_of(int fd, const char *name)
{
    char frame[2000] = { 1 }; /* VIRTIO_NET_HDR_F_NEEDS_CSUM */
    int size = 12;
    say("opened %s with offloads", name);
    if (ioctl(fd, TUNSETVNETHDRSZ, &size) == 0 || write(fd, frame, sizeof frame) >= 0)
        say("got checksum %s", name);
}

static void checksums(void)
{
    tap_flags |= IFF_VNET_HDR;
    on_own("--net:", checksum_of);
}

/* What a request would do depends on the file; whether it is permitted does not. */
static void requests(void)
{
    static const struct { const char *name; unsigned long number; } all[] = {
        { "FS_IOC_RESVSP", FS_IOC_RESVSP }, { "FS_IOC_RESVSP64", FS_IOC_RESVSP64 },
        { "FS_IOC_ZERO_RANGE", FS_IOC_ZERO_RANGE }, { "FS_IOC_SETFLAGS", FS_IOC_SETFLAGS },
        { "FS_IOC_FSSETXATTR", FS_IOC_FSSETXATTR }, { "FS_IOC_FIEMAP", FS_IOC_FIEMAP }, { "FICLONE", FICLONE },
        { "FICLONERANGE", FICLONERANGE }, { "FIDEDUPERANGE", FIDEDUPERANGE }, { "FIFREEZE", FIFREEZE },
        { "FITRIM", FITRIM }, { "FIOASYNC", FIOASYNC }, { "FIOSETOWN", FIOSETOWN },
        { "LOOP_SET_FD", LOOP_SET_FD }, { "LOOP_CLR_FD", LOOP_CLR_FD }, { "LOOP_SET_STATUS64", LOOP_SET_STATUS64 },
        { "LOOP_CHANGE_FD", LOOP_CHANGE_FD }, { "LOOP_CONFIGURE", LOOP_CONFIGURE },
        { "LOOP_SET_CAPACITY", LOOP_SET_CAPACITY }, { "LOOP_SET_BLOCK_SIZE", LOOP_SET_BLOCK_SIZE },
        { "BLKDISCARD", BLKDISCARD }, { "BLKROSET", BLKROSET }, { "BLKRRPART", BLKRRPART }, { "SG_IO", SG_IO },
        { "IOC_PR_RESERVE", IOC_PR_RESERVE }, { "IOC_PR_REGISTER", IOC_PR_REGISTER },
        { "TUNSETPERSIST", TUNSETPERSIST }, { "TUNSETOWNER", TUNSETOWNER }, { "TUNSETGROUP", TUNSETGROUP },
        { "TUNSETLINK", TUNSETLINK }, { "TUNSETQUEUE", TUNSETQUEUE }, { "TUNSETCARRIER", TUNSETCARRIER },
        { "TUNSETOFFLOAD", TUNSETOFFLOAD }, { "TUNSETVNETHDRSZ", TUNSETVNETHDRSZ }, { "TUNSETSNDBUF", TUNSETSNDBUF },
        { "TUNATTACHFILTER", TUNATTACHFILTER }, { "TUNGETDEVNETNS", TUNGETDEVNETNS },
        { "SIOCSIFHWADDR", SIOCSIFHWADDR }, { "SIOCSIFMTU", SIOCSIFMTU }, { "SIOCSIFFLAGS", SIOCSIFFLAGS },
        { "SIOCSIFADDR", SIOCSIFADDR }, { "SIOCETHTOOL", SIOCETHTOOL }, { "SIOCBRADDIF", SIOCBRADDIF },
        { "SIOCGIFCONF", SIOCGIFCONF }, { "SIOCGIFNAME", SIOCGIFNAME }, { "SIOCOUTQ", SIOCOUTQ },
        { "TIOCSTI", TIOCSTI }, { "TIOCLINUX", TIOCLINUX }, { "TCSETS", TCSETS }, { "TIOCSCTTY", TIOCSCTTY },
        { "KVM_CREATE_DEVICE", KVM_CREATE_DEVICE }, { "KVM_CREATE_IRQCHIP", KVM_CREATE_IRQCHIP },
        { "KVM_SET_MSRS", KVM_SET_MSRS }, { "KVM_SET_GUEST_DEBUG", KVM_SET_GUEST_DEBUG },
        { "KVM_MEMORY_ENCRYPT_REG_REGION", KVM_MEMORY_ENCRYPT_REG_REGION }, { "NS_GET_USERNS", NS_GET_USERNS },
        { "SECCOMP_IOCTL_NOTIF_ADDFD", SECCOMP_IOCTL_NOTIF_ADDFD },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        errno = 0;
        ioctl(1, all[i].number, NULL);
        if (errno != EPERM)
            say("got request %s", all[i].name);
        errno = 0;
        ioctl(1, all[i].number | 1UL << 63, NULL); /* of which the kernel takes the lower half */
        if (errno != EPERM)
            say("got request %s by its upper half", all[i].name);
    }
}

static void commands(void)
{
    static const struct { const char *name; int number; long value; } all[] = {
        { "F_SETLEASE", F_SETLEASE, F_RDLCK }, { "F_NOTIFY", F_NOTIFY, 0 }, { "F_SETOWN", F_SETOWN, 1 },
        { "F_SETOWN_EX", F_SETOWN_EX, 0 }, { "F_SETSIG", F_SETSIG, 1 }, { "F_SETPIPE_SZ", F_SETPIPE_SZ, 1 << 20 },
        { "F_SETLK", F_SETLK, 0 }, { "F_SETLKW", F_SETLKW, 0 }, { "F_OFD_SETLK", F_OFD_SETLK, 0 },
        { "F_ADD_SEALS", F_ADD_SEALS, 0 }, { "F_SET_RW_HINT", F_SET_RW_HINT, 0 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        errno = 0;
        if (fcntl(1, all[i].number, all[i].value) != -1 || errno != EPERM)
            say("got command %s", all[i].name);
    }
}

/* Pages that MemoryMax= does not count. Without a free one the kernel has no memory, and no objection. */
static void huge_pages(void)
{
    if (mmap(NULL, 2 << 20, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0) != MAP_FAILED || errno == ENOMEM)
        say("got huge pages");
    if (syscall(SYS_memfd_create, "huge", MFD_HUGETLB) >= 0)
        say("got huge pages of a file");
}

/* Pages in common with other tasks, if their content is the same: the time of a write tells. */
static void merged_pages(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (madvise(page, 4096, MADV_MERGEABLE) == 0 || errno != EPERM)
        say("got merged pages");
    if (prctl(67 /* PR_SET_MEMORY_MERGE */, 1, 0, 0, 0) == 0 || errno != EPERM)
        say("got merged memory");
}

/* Who waits for a listener of a filter, and only ends by being killed, cannot be frozen. */
static void listeners(void)
{
    struct sock_filter all = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
    struct sock_fprog filter = { 1, &all };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter) >= 0)
        say("got listener");
}

/* A way to sockets and space that no other call's arguments show. */
static void rings(void)
{
    char parameters[120] = { 0 };
    if (syscall(SYS_io_uring_setup, 1, parameters) >= 0)
        say("got ring");
}

static void personalities(void)
{
    if (personality(ADDR_NO_RANDOMIZE) >= 0)
        say("got personality");
}

/* What the host's kernel says and takes in the name of whom has a socket. */
static void kinds_of_sockets(void)
{
    static const int kinds[][3] = {
        { AF_INET, SOCK_STREAM, 0 }, { AF_INET, SOCK_DGRAM, IPPROTO_ICMP }, { AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE },
        { AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER }, { AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT },
        { AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (socket(kinds[i][0], kinds[i][1], kinds[i][2]) >= 0 || errno != EPERM)
            say("got socket kind %d %d %d", kinds[i][0], kinds[i][1], kinds[i][2]);
}

static void autobind(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = { AF_INET, htons(9), { htonl(0x7f000001) }, { 0 } };
    if (fd >= 0 && connect(fd, (void *)&to, sizeof to) == 0)
        say("got ephemeral port");
}

static void membership(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ip_mreqn group = { .imr_multiaddr = { htonl(0xe9000001) }, .imr_ifindex = 1 };
    if (fd >= 0 && setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group) == 0)
        say("got membership");
}

static void passed_descriptor(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = { AF_INET, htons(9), { htonl(0x7f000001) }, { 0 } };
    struct iovec data = { "x", 1 };
    struct msghdr message = { .msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &data, .msg_iovlen = 1 };
    if (fd >= 0 && (sendmsg(fd, &message, 0) == 1))
        say("got message");
}

/* In which group of the host's it is: the task's name, and the slice's. */
static void group(void)
{
    char text[256];
    int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    text[size < 0 ? 0 : size] = '\0';
    if (strstr(text, ".slice"))
        say("got group %s", strstr(text, ".slice"));
}

static void standard_input(void)
{
    struct stat status;
    if (fstat(0, &status) != 0 || !S_ISREG(status.st_mode))
        return;
    if ((fcntl(0, F_GETFL) & O_ACCMODE) != O_RDONLY)
        say("got stdin");
    readable("stdin", "/proc/self/fd/0", O_WRONLY);
}

static void datagrams(void)
{
    static const uint32_t addresses[] = { 0x7f000001, 0xa9fea9fe, 0xc0000201 };
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        struct sockaddr_in to = { AF_INET, htons(53), { htonl(addresses[i]) }, { 0 } };
        if (fd >= 0 && sendto(fd, "x", 1, 0, (void *)&to, sizeof to) == 1)
            say("got datagram %x", addresses[i]);
    }
}

static void ports(void)
{
    for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
        int fd = socket(AF_INET, kind, 0);
        struct sockaddr_in at = { AF_INET, htons(8500), { 0 }, { 0 } };
        if (fd >= 0 && bind(fd, (void *)&at, sizeof at) == 0)
            say("got port %d", kind);
    }
}

static void raw(void)
{
    if (socket(AF_INET, SOCK_RAW, IPPROTO_UDP) >= 0 || socket(AF_PACKET, SOCK_RAW, 0) >= 0)
        say("got raw socket");
}

static void sockets(void)
{
    static const char *names[] = {
        "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/notify", "/run/systemd/journal/stdout",
        "/run/systemd/journal/dev-log", "/run/systemd/userdb/io.systemd.DynamicUser", "/run/host-control",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
            struct sockaddr_un to = { .sun_family = AF_UNIX };
            strncpy(to.sun_path, names[i], sizeof to.sun_path - 1);
            int fd = socket(AF_UNIX, kind, 0);
            if (fd >= 0 && connect(fd, (void *)&to, sizeof to) == 0)
                say("got socket %s", names[i]);
        }
}

/* Where all users of the host may write, and what they share. */
static void places(void)
{
    static const char *names[] = { "/dev/shm", "/dev/mqueue", "/tmp", "/var/tmp", "/run", "/run/lock", "/dev", "/" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int fd = open(names[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0)
            continue;
        say("got place %s", names[i]);
        close(fd);
    }
}

/* What a later task with this user would have: a program with its rights, a disk that others read, memory. */
static void program(void)
{
    static const char *path = "/var/tmp/hostile-program";
    int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 04755);
    if (fd < 0)
        return;
    say("got program %s", path);
    unlink(path);
}

static void mode_of(int fd, const char *path)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && fchmod(fd, 0666) == 0) {
        say("got mode %s", path);
        fchmod(fd, status.st_mode & 0777);
    }
}

static void mode(void) { on_own("--block:", mode_of); }

static void name_of(int fd, const char *path)
{
    static const char *name = "/var/tmp/hostile-name";
    (void)fd;
    if (linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0 || errno == EXDEV) {
        say("got name %s", path);
        unlink(name);
    }
}

static void second_name(void) { on_own("--block:", name_of); }

static void segment(void)
{
    int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    if (id < 0)
        return;
    say("got segment");
    shmctl(id, IPC_RMID, NULL);
}

/* An address of 12 bytes, as netlink has. */
static void pair(void)
{
    int ends[2];
    struct sockaddr_un to = { AF_UNIX, "dev-log" };
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0 && chdir("/run/systemd/journal") == 0 &&
        sendto(ends[0], "<6>hostile", 10, 0, (void *)&to, 12) == 10)
        say("got pair");
}

static void unlock_of(int fd, const char *path)
{
    char data[64] = { 0 };
    for (int i = 0; i < 64; i++)
        if (i != 1 && i != 2 && i != fd) {
            flock(i, LOCK_UN);
            close(i);
        }
    say("unlocked %s", path);
    for (;;) { /* what a later task writes there */
        if (pread(fd, data, sizeof data - 1, 0) > 0 && data[0])
            say("got text %s", data);
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    }
}

static void terminals(void)
{
    readable("terminal", "/dev/ptmx", O_RDWR);
    readable("terminal", "/dev/pts/ptmx", O_RDWR);
}

static void become(void)
{
    if (setresuid(0, 0, 0) == 0 || setresgid(0, 0, 0) == 0)
        say("got root");
}

static void namespaces(void)
{
    if (unshare(CLONE_NEWUSER) == 0)
        say("got namespace");
}

static const struct { const char *name; void (*run)(void); } attacks[] = {
    { "signals", signals }, { "limits", limits }, { "trace", trace }, { "memory", memory }, { "processes", processes },
    { "own tap", own_tap }, { "checksums", checksums }, { "taps", taps }, { "links", links }, { "files", files }, { "code", code }, { "growth", growth }, { "group", group },
    { "stdin", standard_input }, { "datagrams", datagrams },
    { "space", space }, { "loops", loops }, { "leases", leases }, { "requests", requests }, { "commands", commands },
    { "huge pages", huge_pages }, { "merged pages", merged_pages }, { "listeners", listeners }, { "rings", rings },
    { "personalities", personalities }, { "kinds of sockets", kinds_of_sockets }, { "autobind", autobind },
    { "membership", membership }, { "message", passed_descriptor },
    { "program", program }, { "mode", mode }, { "second name", second_name }, { "segment", segment }, { "pair", pair },
    { "ports", ports }, { "raw", raw }, { "sockets", sockets }, { "places", places },
    { "terminals", terminals }, { "become", become }, { "namespaces", namespaces },
};

/* What a tap's own descriptor and plain sockets do. They stay open: what they have got is looked at from outside. */
static void network(const char *mac)
{
    int ports = 0, sent = 0, groups = 0, first = 0;
    struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };
    for (char **option = options; *option && strcmp(*option, "--") != 0; option++)
        if (strncmp(*option, "--net:", 6) == 0)
            strncpy(request.ifr_name, strchr(*option, '=') + 1, IFNAMSIZ - 1);
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    int set = ioctl(fd, TUNSETIFF, &request);
    unsigned octets[6];
    sscanf(mac, "%x:%x:%x:%x:%x:%x", octets, octets + 1, octets + 2, octets + 3, octets + 4, octets + 5);
    memset(&request, 0, sizeof request);
    request.ifr_hwaddr.sa_family = 1; /* ARPHRD_ETHER */
    for (int i = 0; i < 6; i++)
        request.ifr_hwaddr.sa_data[i] = octets[i];
    set |= ioctl(fd, SIOCSIFHWADDR, &request);
    say("network: MAC %s", set == 0 ? "set" : strerror(errno));
    struct ip_mreqn group = { .imr_multiaddr = { htonl(0xef010203) } };
    for (int i = 0; i < SOCKETS; i++) {
        int each = socket(AF_INET, SOCK_DGRAM, 0);
        struct sockaddr_in at = { AF_INET, 0, { 0 }, { 0 } };
        socklen_t size = sizeof at;
        if (each < 0)
            break;
        if (bind(each, (void *)&at, sizeof at) != 0 || getsockname(each, (void *)&at, &size) != 0)
            continue;
        ports++;
        first = first ? first : at.sin_port;
        at.sin_port = first;
        static const uint32_t addresses[] = { 0x7f000001, 0xc0000201, 0xef010203 };
        for (size_t j = 0; j < sizeof addresses / sizeof *addresses; j++) {
            at.sin_addr.s_addr = htonl(addresses[j]);
            sent += sendto(each, "x", 1, 0, (void *)&at, sizeof at) == 1;
        }
        group.imr_ifindex = i + 1;
        groups += setsockopt(each, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group) == 0;
    }
    say("network: %d ports, %d datagrams, %d groups", ports, sent, groups);
}

/* The filter has neither fork(2) nor wait4(2): a child is gone when it cannot be signalled any more. */
static void attack(const char *name, void (*run)(void))
{
    shared->done = 0;
    pid_t child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        run();
        shared->done = 1;
        _exit(0);
    }
    for (int i = 0; child > 0 && kill(child, 0) == 0 && i < PATIENCE_MS; i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    say("tried %s: %s", name, child < 0 ? strerror(errno) : shared->done ? "whole" : "ended by the kernel");
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--version") == 0)
        return execv("/usr/local/bin/solo5-spt", argv);
    options = argv + 1;
    for (paths = options; *paths && strcmp(*paths, "--") != 0; paths++)
        ;
    paths += *paths && paths[1] ? 2 : 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared->main = getpid();
    signal(SIGCHLD, SIG_IGN);
    if (*paths && paths[1] && strcmp(*paths, "network") == 0)
        network(paths[1]);
    else if (*paths && strcmp(*paths, "unlock") == 0)
        on_own("--block:", unlock_of);
    else if (!*paths || strcmp(*paths, "victim") != 0)
        for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++)
            attack(attacks[i].name, attacks[i].run);
    say("waiting");
    for (;;)
        nanosleep(&(struct timespec){ .tv_sec = 3600 }, NULL);
}
