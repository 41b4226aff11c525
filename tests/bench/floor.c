/* The floor of the benchmark: units of tasks, started and stopped by the fewest direct calls.
 *
 *     floor starts|pairs WIDTH <TASKS
 *
 * `starts` starts WIDTH tasks at the same time, stops them when all of them run, and goes on with the next ones. `pairs`
 * starts and stops each task by itself, WIDTH at a time. Prints one line of JSON: milliseconds from the first call for
 * a task until its start job is done, seconds for all tasks together, and microseconds of CPU time of this process.
 *
 * TASKS, one word a line: the index of the bridge; then for each task its service, its outcome target, its tap with
 * alias and uid, two nfnetlink batches in hexadecimal (add, delete), the number of properties, and for each property
 * name, signature and value. In a value, an array begins with its length; the rest is flat. tests/bench/floor.py.
 *
 * tests/bench/README.md has the calls for one task, in order.
 *
 * Links have a thread of their own, since the kernel holds its lock of links during that grace period. Subscribe() is
 * not called: PID 1 sends JobRemoved to the client that queued the job anyway, and all other signals only then. */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>
#include <time.h>
#include <unistd.h>

#define SYSTEMD "org.freedesktop.systemd1"
#define MANAGER_PATH "/org/freedesktop/systemd1"
#define MANAGER SYSTEMD ".Manager"
#define DELETED 0xf1005 /* a link group that nothing else uses */

enum { BATCH = 512, MESSAGE = 256 }; /* tasks at a time; bytes of a message that configures a link */

enum step { WAITING, MAKING, STARTING, RUNNING, STOPPING, FORGETTING, GONE };

struct bytes {
    unsigned char *data;
    size_t length;
};

struct task {
    const char *service, *outcome, *tap, *alias;
    unsigned owner;
    struct bytes add, delete;
    sd_bus_message *start;
    enum step step;
    bool forgotten, unlinked;
    double began, took;
};

static struct task *tasks;
static size_t count, next, active, running, width;
static bool together;
static unsigned bridge;
static int to_links[2], from_links[2]; /* pipes of pointers to tasks */
static sd_bus *bus;
static sd_event *event;

static double milliseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void check(int result, const char *what)
{
    if (result >= 0)
        return;
    errno = -result;
    err(1, "%s", what);
}

static void check_errno(ssize_t result, const char *what)
{
    if (result == -1)
        err(1, "%s", what);
}

/* ---- links and packet filter: in the thread of links --------------------------------------------------------------- */

static int netlink(int protocol)
{
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    check_errno(fd, "netlink");
    return fd;
}

/* Send requests of which the last has NLM_F_ACK; the first message that comes back is an error, or that one's. */
static void exchange(int fd, const void *requests, size_t length, const char *what)
{
    _Alignas(struct nlmsghdr) char reply[8192];
    const struct nlmsghdr *header = (void *)reply;
    const struct nlmsgerr *error = NLMSG_DATA(header);
    check_errno(send(fd, requests, length, 0), what);
    check_errno(recv(fd, reply, sizeof reply, 0), what);
    check(header->nlmsg_type == NLMSG_ERROR ? error->error : -EBADMSG, what);
}

static struct nlmsghdr *link_message(void *at, int type, int flags, unsigned up)
{
    struct nlmsghdr *header = at;
    struct ifinfomsg *info = NLMSG_DATA(header);
    memset(at, 0, MESSAGE);
    header->nlmsg_len = NLMSG_LENGTH(sizeof *info);
    header->nlmsg_type = type;
    header->nlmsg_flags = NLM_F_REQUEST | flags;
    info->ifi_flags = info->ifi_change = up;
    return header;
}

static void attribute(struct nlmsghdr *header, int type, const void *value, size_t length)
{
    struct rtattr *added = (void *)((char *)header + header->nlmsg_len);
    added->rta_type = type;
    added->rta_len = RTA_LENGTH(length);
    memcpy(RTA_DATA(added), value, length);
    header->nlmsg_len += RTA_ALIGN(added->rta_len);
}

static void make_tap(int rtnetlink, const struct task *task)
{
    _Alignas(struct nlmsghdr) char buffer[MESSAGE];
    struct nlmsghdr *header;
    struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    check_errno(fd, "/dev/net/tun");
    memccpy(request.ifr_name, task->tap, 0, IFNAMSIZ - 1);
    check_errno(ioctl(fd, TUNSETIFF, &request), "TUNSETIFF");
    check_errno(ioctl(fd, TUNSETOWNER, task->owner), "TUNSETOWNER");
    check_errno(ioctl(fd, TUNSETPERSIST, 1), "TUNSETPERSIST");
    close(fd);
    header = link_message(buffer, RTM_SETLINK, NLM_F_ACK, IFF_UP);
    attribute(header, IFLA_IFNAME, task->tap, strlen(task->tap) + 1);
    attribute(header, IFLA_IFALIAS, task->alias, strlen(task->alias));
    attribute(header, IFLA_MASTER, &bridge, sizeof bridge);
    exchange(rtnetlink, buffer, header->nlmsg_len, "RTM_SETLINK");
}

/* All taps by one request, so that the kernel waits for one grace period. */
static void delete_taps(int rtnetlink, struct task *const *deleted, size_t n)
{
    static _Alignas(struct nlmsghdr) char buffer[MESSAGE * (BATCH + 1)];
    const unsigned group = DELETED;
    struct nlmsghdr *header;
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        header = link_message(buffer + length, RTM_SETLINK, 0, 0);
        attribute(header, IFLA_IFNAME, deleted[i]->tap, strlen(deleted[i]->tap) + 1);
        attribute(header, IFLA_GROUP, &group, sizeof group);
        length += header->nlmsg_len;
    }
    header = link_message(buffer + length, RTM_DELLINK, NLM_F_ACK, 0);
    attribute(header, IFLA_GROUP, &group, sizeof group);
    exchange(rtnetlink, buffer, length + header->nlmsg_len, "RTM_DELLINK");
}

static void *links(void *unused)
{
    struct task *all[BATCH], *deleted[BATCH];
    int rtnetlink = netlink(NETLINK_ROUTE), netfilter = netlink(NETLINK_NETFILTER);
    ssize_t length;
    while ((length = read(to_links[0], all, sizeof all)) > 0) {
        size_t n = 0;
        for (size_t i = 0; i < length / sizeof *all; i++) {
            struct task *task = all[i];
            if (task->step == MAKING) {
                make_tap(rtnetlink, task);
                exchange(netfilter, task->add.data, task->add.length, "elements to add");
                check_errno(write(from_links[1], &task, sizeof task), "pipe");
            } else {
                exchange(netfilter, task->delete.data, task->delete.length, "elements to delete");
                deleted[n++] = task;
            }
        }
        if (n) {
            delete_taps(rtnetlink, deleted, n);
            check_errno(write(from_links[1], deleted, n * sizeof *deleted), "pipe");
        }
    }
    return unused;
}

/* ---- units: in the main thread, which waits in the event loop ------------------------------------------------------- */

static int on_reply(sd_bus_message *reply, void *data, sd_bus_error *unused)
{
    const struct task *task = data;
    (void)unused;
    if (sd_bus_message_is_method_error(reply, NULL))
        errx(1, "%s: %s", task->service, sd_bus_message_get_error(reply)->message);
    return 0;
}

static void to_thread(struct task *task)
{
    check_errno(write(to_links[1], &task, sizeof task), "pipe");
}

static void stop_unit(struct task *task, enum step step, const char *unit)
{
    task->step = step;
    check(sd_bus_call_method_async(bus, NULL, SYSTEMD, MANAGER_PATH, MANAGER, "StopUnit", on_reply, task, "ss", unit,
                                   "replace"),
          "StopUnit");
}

static void begin_more(void)
{
    if (together && active)
        return;
    for (; active < width && next < count; next++, active++) {
        tasks[next].step = MAKING;
        tasks[next].began = milliseconds(CLOCK_MONOTONIC);
        to_thread(&tasks[next]);
    }
}

static void started(struct task *task)
{
    task->took = milliseconds(CLOCK_MONOTONIC) - task->began;
    task->step = RUNNING;
    if (together && ++running < active)
        return;
    running = 0;
    for (size_t i = 0; i < next; i++)
        if (tasks[i].step == RUNNING)
            stop_unit(&tasks[i], STOPPING, tasks[i].service);
}

static void forget(struct task *task)
{
    stop_unit(task, FORGETTING, task->outcome);
    to_thread(task);
}

static void end_if_gone(struct task *task)
{
    if (!task->forgotten || !task->unlinked)
        return;
    task->step = GONE;
    active--;
    begin_more();
    if (!active)
        check(sd_event_exit(event, 0), "event loop");
}

static void job_removed(struct task *task, const char *unit)
{
    if (task->step == STARTING && strcmp(unit, task->service) == 0)
        started(task);
    else if (task->step == STOPPING && strcmp(unit, task->service) == 0)
        forget(task);
    else if (task->step == FORGETTING && strcmp(unit, task->outcome) == 0) {
        task->forgotten = true;
        end_if_gone(task);
    }
}

static int on_job_removed(sd_bus_message *signal, void *unused, sd_bus_error *error)
{
    const char *path, *unit, *result;
    uint32_t id;
    (void)unused, (void)error;
    check(sd_bus_message_read(signal, "uoss", &id, &path, &unit, &result), "JobRemoved");
    for (size_t i = 0; i < next; i++)
        if (tasks[i].step != GONE && (strcmp(unit, tasks[i].service) == 0 || strcmp(unit, tasks[i].outcome) == 0)) {
            if (strcmp(result, "done"))
                errx(1, "%s: job result %s", unit, result);
            job_removed(&tasks[i], unit);
            break;
        }
    return 0;
}

static int on_links(sd_event_source *source, int fd, uint32_t revents, void *unused)
{
    struct task *done[BATCH];
    ssize_t length = read(fd, done, sizeof done);
    (void)source, (void)revents, (void)unused;
    check_errno(length, "pipe");
    for (size_t i = 0; i < length / sizeof *done; i++)
        if (done[i]->step == MAKING) {
            done[i]->step = STARTING;
            check(sd_bus_call_async(bus, NULL, done[i]->start, on_reply, done[i], 0), "StartTransientUnit");
        } else {
            done[i]->unlinked = true;
            end_if_gone(done[i]);
        }
    return 0;
}

/* ---- the tasks, read before the clock starts ------------------------------------------------------------------------ */

static char *optional_word(void)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t length = getline(&line, &size, stdin);
    if (length == -1)
        return NULL;
    if (line[length - 1] == '\n')
        line[length - 1] = 0;
    return line;
}

static char *word(void)
{
    char *line = optional_word();
    if (!line)
        errx(1, "the input ends within a task");
    return line;
}

static unsigned long long number(void)
{
    char *line = word();
    unsigned long long value = strtoull(line, NULL, 10);
    free(line);
    return value;
}

static struct bytes hexadecimal(void)
{
    char *line = word();
    struct bytes bytes = { .length = strlen(line) / 2 };
    bytes.data = (unsigned char *)line; /* in place: a byte is shorter than its two digits */
    for (size_t i = 0; i < bytes.length; i++)
        sscanf(line + 2 * i, "%2hhx", &bytes.data[i]);
    return bytes;
}

/* The length of one complete type at the start of a signature. */
static size_t type_length(const char *signature)
{
    size_t length = 1;
    if (*signature == 'a')
        return 1 + type_length(signature + 1);
    if (*signature == '(') {
        while (signature[length] != ')')
            length += type_length(signature + length);
        length++;
    }
    return length;
}

static void append(sd_bus_message *message, const char *signature);

static void append_all(sd_bus_message *message, const char *signature)
{
    for (; *signature; signature += type_length(signature))
        append(message, signature);
}

static void append_number(sd_bus_message *message, char type)
{
    uint64_t value = number(); /* little endian: the low bytes come first */
    int boolean = value != 0;
    check(sd_bus_message_append_basic(message, type, type == 'b' ? (void *)&boolean : (void *)&value), "append");
}

/* Append a value of the type at the start of the signature. */
static void append(sd_bus_message *message, const char *signature)
{
    char inner[256] = "";
    size_t length = type_length(signature);
    switch (*signature) {
    case 'a':
        memcpy(inner, signature + 1, length - 1);
        check(sd_bus_message_open_container(message, 'a', inner), "array");
        for (unsigned long long left = number(); left; left--)
            append(message, inner);
        check(sd_bus_message_close_container(message), "array");
        break;
    case '(':
        memcpy(inner, signature + 1, length - 2);
        check(sd_bus_message_open_container(message, 'r', inner), "struct");
        append_all(message, inner);
        check(sd_bus_message_close_container(message), "struct");
        break;
    case 's': {
        char *text = word();
        check(sd_bus_message_append_basic(message, 's', text), "string");
        free(text);
        break;
    }
    default:
        append_number(message, *signature);
    }
}

static void append_property(sd_bus_message *message)
{
    char *name = word(), *signature = word();
    check(sd_bus_message_open_container(message, 'r', "sv"), "property");
    check(sd_bus_message_append_basic(message, 's', name), name);
    check(sd_bus_message_open_container(message, 'v', signature), name);
    append(message, signature);
    check(sd_bus_message_close_container(message), name);
    check(sd_bus_message_close_container(message), name);
    free(name);
    free(signature);
}

static void read_start(struct task *task)
{
    check(sd_bus_message_new_method_call(bus, &task->start, SYSTEMD, MANAGER_PATH, MANAGER, "StartTransientUnit"),
          "StartTransientUnit");
    check(sd_bus_message_append(task->start, "ss", task->service, "fail"), "name");
    check(sd_bus_message_open_container(task->start, 'a', "(sv)"), "properties");
    for (unsigned long long left = number(); left; left--)
        append_property(task->start);
    check(sd_bus_message_close_container(task->start), "properties");
    check(sd_bus_message_append(task->start, "a(sa(sv))", 0), "auxiliary units");
}

static void read_tasks(void)
{
    char *service;
    bridge = number();
    while ((service = optional_word())) {
        struct task *task;
        tasks = reallocarray(tasks, count + 1, sizeof *tasks);
        if (!tasks)
            err(1, "tasks");
        task = &tasks[count++];
        *task = (struct task){ .service = service };
        task->outcome = word();
        task->tap = word();
        task->alias = word();
        task->owner = number();
        task->add = hexadecimal();
        task->delete = hexadecimal();
        read_start(task);
    }
}

static void print_report(double seconds)
{
    printf("{\"milliseconds\": [");
    for (size_t i = 0; i < count; i++)
        printf("%s%.3f", i ? ", " : "", tasks[i].took);
    printf("], \"seconds\": %.6f, \"cpu\": %.0f}\n", seconds, milliseconds(CLOCK_PROCESS_CPUTIME_ID) * 1000);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    double began;
    if (argc != 3 || (width = strtoul(argv[2], NULL, 10)) < 1 || width > BATCH)
        errx(2, "usage: floor starts|pairs WIDTH <TASKS");
    together = strcmp(argv[1], "starts") == 0;
    check(sd_bus_open_system(&bus), "system bus");
    check(sd_event_default(&event), "event loop");
    check(sd_bus_attach_event(bus, event, 0), "event loop");
    check(sd_bus_match_signal(bus, NULL, SYSTEMD, MANAGER_PATH, MANAGER, "JobRemoved", on_job_removed, NULL), "match");
    check_errno(pipe2(to_links, O_CLOEXEC), "pipe");
    check_errno(pipe2(from_links, O_CLOEXEC), "pipe");
    check(sd_event_add_io(event, NULL, from_links[0], EPOLLIN, on_links, NULL), "event loop");
    check(-pthread_create(&thread, NULL, links, NULL), "thread");
    read_tasks();
    began = milliseconds(CLOCK_MONOTONIC);
    begin_more();
    check(count ? sd_event_loop(event) : 0, "event loop");
    print_report((milliseconds(CLOCK_MONOTONIC) - began) / 1000);
    return 0;
}
