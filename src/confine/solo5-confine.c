/* Execute a tender under one more filter of system calls, which checks arguments: PID 1's filter checks none.
 *
 *     solo5-confine TENDER [ARGUMENT…]        in a scope
 *     TENDER [ARGUMENT…]                      in a service, whose unit has ExecStart=@/usr/libexec/solo5-confine TENDER …
 *
 * A call that has rows in `permits` fails with EPERM unless, for each of its arguments that is in a row, one of the
 * rows of that argument holds. All other calls are PID 1's to decide. Rows of one call and argument are neighbours.
 *
 * No file becomes larger than the largest disk, which is then what a disk can grow to beyond its quota: a unit that is
 * written before its disks are known has no LimitFSIZE=.
 *
 * Without a C library, so that the second execution of each start costs as little as it can.
 */
#include <asm/stat.h>
#include <asm/unistd.h>
#include <linux/audit.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/filter.h>
#include <linux/if_tun.h>
#include <linux/kvm.h>
#include <linux/memfd.h>
#include <linux/mman.h>
#include <linux/netlink.h>
#include <linux/prctl.h>
#include <linux/resource.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <linux/stat.h>
#include <asm/ioctls.h>

/* systemd.exec(5), "Process Exit Codes" */
enum { EXIT_EXEC = 203, EXIT_SECCOMP = 228 };

/* Bytes of the largest filter (BPF_MAXINSNS), which tenders write to a file in memory. */
enum { FILTER_SIZE = 32 << 10 };

/* From headers of the C library. */
enum { AF_INET = 2, AF_NETLINK = 16, SOCK_DGRAM = 2, SOCK_RAW = 3, SOCK_FLAGS = 02000000 | 04000 };

/* Since Linux 6.6 and 6.13, of which headers may be older. */
enum { NR_FCHMODAT2 = 452, NR_SETXATTRAT = 463 };

#define ALL 0xffffffffu

static const struct permit {
    unsigned call, argument, mask, value;
} permits[] = {
    /* Requests of tenders, the most frequent one first. All others are refused: of file systems (space beyond the end
     * of a disk, flags), of block devices (another file behind a loop device, SCSI commands, reservations), of taps (MAC
     * address, owner, persistence), of terminals (input), and of KVM what no tender uses. */
    { __NR_ioctl, 1, ALL, KVM_RUN },
    { __NR_ioctl, 1, ALL, KVM_GET_API_VERSION },
    { __NR_ioctl, 1, ALL, KVM_CHECK_EXTENSION },
    { __NR_ioctl, 1, ALL, KVM_CREATE_VM },
    { __NR_ioctl, 1, ALL, KVM_CREATE_VCPU },
    { __NR_ioctl, 1, ALL, KVM_GET_VCPU_MMAP_SIZE },
    { __NR_ioctl, 1, ALL, KVM_SET_USER_MEMORY_REGION },
    { __NR_ioctl, 1, ALL, KVM_IOEVENTFD },
#ifdef __x86_64__
    { __NR_ioctl, 1, ALL, KVM_GET_SUPPORTED_CPUID },
    { __NR_ioctl, 1, ALL, KVM_SET_CPUID2 },
    { __NR_ioctl, 1, ALL, KVM_GET_TSC_KHZ },
    { __NR_ioctl, 1, ALL, KVM_GET_REGS },
    { __NR_ioctl, 1, ALL, KVM_SET_REGS },
    { __NR_ioctl, 1, ALL, KVM_GET_SREGS },
    { __NR_ioctl, 1, ALL, KVM_SET_SREGS },
#else
    { __NR_ioctl, 1, ALL, KVM_ARM_PREFERRED_TARGET },
    { __NR_ioctl, 1, ALL, KVM_ARM_VCPU_INIT },
    { __NR_ioctl, 1, ALL, KVM_GET_ONE_REG },
    { __NR_ioctl, 1, ALL, KVM_SET_ONE_REG },
#endif
    { __NR_ioctl, 1, ALL, TUNSETIFF },
    { __NR_ioctl, 1, ALL, SIOCGIFMTU },
    { __NR_ioctl, 1, ALL, SIOCGIFFLAGS },
    { __NR_ioctl, 1, ALL, TCGETS }, /* isatty(3) */
    { __NR_ioctl, 1, ALL, FIONREAD },
    { __NR_ioctl, 1, ALL, FIONBIO },
    /* No lease, which keeps others from opening a disk; no lock; no signals of files. */
    { __NR_fcntl, 1, ALL, F_DUPFD },
    { __NR_fcntl, 1, ALL, F_DUPFD_CLOEXEC },
    { __NR_fcntl, 1, ALL, F_GETFD },
    { __NR_fcntl, 1, ALL, F_SETFD },
    { __NR_fcntl, 1, ALL, F_GETFL },
    { __NR_fcntl, 1, ALL, F_SETFL },
    /* No huge pages, which MemoryMax= does not count. */
    { __NR_mmap, 3, MAP_HUGETLB, 0 },
    { __NR_memfd_create, 1, MFD_HUGETLB, 0 },
    /* No pages that are merged with those of other tasks: how long a write takes reveals what these have. */
    { __NR_madvise, 2, ALL, MADV_NORMAL },
    { __NR_madvise, 2, ALL, MADV_DONTNEED },
    { __NR_madvise, 2, ALL, MADV_FREE },
    { __NR_madvise, 2, ALL, MADV_HUGEPAGE },
    { __NR_madvise, 2, ALL, MADV_NOHUGEPAGE },
    { __NR_madvise, 2, ALL, MADV_DONTDUMP },
    { __NR_prctl, 0, ALL, PR_SET_NO_NEW_PRIVS },
    { __NR_prctl, 0, ALL, PR_SET_SECCOMP },
    { __NR_prctl, 0, ALL, PR_GET_SECCOMP },
    { __NR_prctl, 0, ALL, PR_SET_NAME },
    { __NR_prctl, 0, ALL, PR_SET_VMA },
    /* Whoever waits for a listener cannot be frozen for a snapshot. */
    { __NR_seccomp, 1, SECCOMP_FILTER_FLAG_NEW_LISTENER, 0 },
    { __NR_personality, 0, ALL, ALL }, /* a question */
    /* Sockets to list links and to read an MTU: neither a stream nor ICMP, no port, no destination, no option such
     * as a multicast group. An address of 12 bytes is one of netlink, and no family of IP accepts it. */
    { __NR_socket, 0, ALL, AF_INET },
    { __NR_socket, 0, ALL, AF_NETLINK },
    { __NR_socket, 1, ~SOCK_FLAGS, SOCK_DGRAM },
    { __NR_socket, 1, ~SOCK_FLAGS, SOCK_RAW },
    { __NR_socket, 2, ALL, 0 },
    { __NR_bind, 2, ALL, sizeof(struct sockaddr_nl) },
    { __NR_sendto, 5, ALL, sizeof(struct sockaddr_nl) },
    { __NR_sendto, 5, ALL, 0 },
    { __NR_setsockopt, 1, 0, ALL }, /* never */
    { __NR_sendmsg, 2, 0, ALL },
    { __NR_sendmmsg, 3, 0, ALL },
    { __NR_connect, 2, 0, ALL },
    /* Other ways to the same, which only a scope has: sockets, leases, space and advice by a ring; space beyond the end
     * of a disk; merged pages. */
    { __NR_io_uring_setup, 0, 0, ALL },
    { __NR_fallocate, 1, 0, ALL },
    { __NR_process_madvise, 0, 0, ALL },
    /* An address of 12 bytes has room for the name of a socket of the host's, as of the journal. */
    { __NR_socketpair, 0, 0, ALL },
    /* Nothing that outlives a scope, whose user another task has later: a program with that task's rights (set-ID), a
     * disk that everybody may read or that has a second name, memory. */
#ifdef __x86_64__
    { __NR_open, 1, O_CREAT | __O_TMPFILE, 0 },
    { __NR_creat, 0, 0, ALL },
    { __NR_mknod, 0, 0, ALL },
    { __NR_link, 0, 0, ALL },
    { __NR_chmod, 0, 0, ALL },
#endif
    { __NR_openat, 2, O_CREAT | __O_TMPFILE, 0 },
    { __NR_openat2, 0, 0, ALL },
    { __NR_mknodat, 0, 0, ALL },
    { __NR_linkat, 0, 0, ALL },
    { __NR_fchmod, 0, 0, ALL },
    { __NR_fchmodat, 0, 0, ALL },
    { NR_FCHMODAT2, 0, 0, ALL },
    { __NR_setxattr, 0, 0, ALL },
    { __NR_lsetxattr, 0, 0, ALL },
    { __NR_fsetxattr, 0, 0, ALL },
    { NR_SETXATTRAT, 0, 0, ALL },
    { __NR_shmget, 0, 0, ALL },
};

enum { PERMITS = sizeof permits / sizeof *permits, PER_ROW = 6 };

#ifdef __x86_64__
enum { ARCH = AUDIT_ARCH_X86_64 };
static long call(long number, long a, long b, long c, long d)
{
    long result;
    register long fourth __asm__("r10") = d, fifth __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call start\n");
#elif defined __aarch64__
enum { ARCH = AUDIT_ARCH_AARCH64 };
static long call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
__asm__(".globl _start\n_start: mov x29, 0\n mov x0, sp\n bl start\n");
#else
#error "known architectures: x86-64 and aarch64"
#endif

/* Return how many instructions the filter has. */
static unsigned short compile(struct sock_filter *code)
{
    struct sock_filter *next = code;
#define EMIT(OP, K, JT, JF) (*next++ = (struct sock_filter) { OP, JT, JF, K })
#define LOAD(OFFSET) EMIT(BPF_LD | BPF_W | BPF_ABS, OFFSET, 0, 0)
    LOAD(__builtin_offsetof(struct seccomp_data, arch));
    EMIT(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0);
    EMIT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
#ifdef __x86_64__
    LOAD(__builtin_offsetof(struct seccomp_data, nr));
    EMIT(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1); /* x32, where calls have other numbers */
    EMIT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
#endif
    for (const struct permit *first = permits; first < permits + PERMITS;) {
        const struct permit *end = first;
        while (end < permits + PERMITS && end->call == first->call && end->argument == first->argument)
            end++;
        unsigned char rows = (unsigned char)(end - first);
        LOAD(__builtin_offsetof(struct seccomp_data, nr));
        EMIT(BPF_JMP | BPF_JEQ | BPF_K, first->call, 0, rows + 3);
        /* The lower half, which is all that the kernel looks at. */
        LOAD(__builtin_offsetof(struct seccomp_data, args) + 8 * first->argument);
        EMIT(BPF_ALU | BPF_AND | BPF_K, first->mask, 0, 0);
        for (; first < end; first++)
            EMIT(BPF_JMP | BPF_JEQ | BPF_K, first->value, (unsigned char)(end - first), 0);
        EMIT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM, 0, 0);
    }
    EMIT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    return (unsigned short)(next - code);
}

static int is_own_name(const char *path)
{
    const char *own = "solo5-confine", *name = path;
    for (; *path; path++)
        if (*path == '/')
            name = path + 1;
    while (*own && *own == *name)
        own++, name++;
    return *own == *name;
}

/* Return what follows a text at the beginning of a word; NULL: another text is there. */
static const char *after(const char *text, const char *word)
{
    for (; *text; text++, word++)
        if (*text != *word)
            return 0;
    return word;
}

static void limit_files(char **line)
{
    unsigned long most = 0;
    struct stat status;
    /* A console that is a file, as of a scope, has a size of its own. */
    if (!call(__NR_fstat, 1, (long)&status, 0, 0) && S_ISREG(status.st_mode))
        return;
    for (; *line && !((*line)[0] == '-' && (*line)[1] == '-' && !(*line)[2]); line++) {
        const char *path = after("--block:", *line);
        while (path && *path && *path++ != '=')
            ;
        if (!path || call(__NR_newfstatat, AT_FDCWD, (long)path, (long)&status, 0))
            continue;
        if (!S_ISREG(status.st_mode)) /* of a device it is not the size */
            return;
        if ((unsigned long)status.st_size > most)
            most = (unsigned long)status.st_size;
    }
    if (!most)
        return;
    most = most < FILTER_SIZE ? FILTER_SIZE : most;
    unsigned long limits[2] = { most, most };
    call(__NR_prlimit64, 0, RLIMIT_FSIZE, (long)limits, 0); /* fails where a lower limit is in effect */
}

static unsigned long number(const char *digits)
{
    unsigned long value = 0;
    while (*digits >= '0' && *digits <= '9')
        value = 10 * value + (unsigned long)(*digits++ - '0');
    return value;
}

/* Close what a socket unit passes (sd_listen_fds(3)): a tender has its guest's devices, and nothing else. */
static void close_passed(char **environment)
{
    unsigned long pid = 0, count = 0;
    for (; *environment; environment++) {
        const char *value = after("LISTEN_PID=", *environment);
        if (value)
            pid = number(value);
        value = after("LISTEN_FDS=", *environment);
        if (value)
            count = number(value);
    }
    if (pid != (unsigned long)call(__NR_getpid, 0, 0, 0, 0))
        return;
    for (unsigned long fd = 3; fd < 3 + count; fd++)
        call(__NR_close, (long)fd, 0, 0, 0);
}

static void fail(const char *what, long size, int status)
{
    call(__NR_write, 2, (long)what, size, 0);
    call(__NR_exit_group, status, 0, 0, 0);
}

#define FAIL(WHAT, STATUS) fail("solo5-confine: " WHAT "\n", sizeof "solo5-confine: " WHAT, STATUS)

__attribute__((used)) void start(long *stack)
{
    char **line = (char **)(stack + 1), **environment = line + *stack + 1;
    struct sock_filter code[PERMITS * PER_ROW + 8];
    struct sock_fprog filter = { compile(code), code };
    if (*stack > 0 && is_own_name(line[0]))
        line++;
    limit_files(line);
    close_passed(environment);
    if (call(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0) ||
        call(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&filter, 0))
        FAIL("the kernel accepts no filter of system calls", EXIT_SECCOMP);
    if (line[0])
        call(__NR_execve, (long)line[0], (long)line, (long)environment, 0);
    FAIL("the tender cannot be executed", EXIT_EXEC);
}
