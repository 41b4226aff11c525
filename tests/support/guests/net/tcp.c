#include "tcp.h"

#include "responder.h"

enum { FIN = 1, SYN = 2, RST = 4, PUSH = 8, ACK = 16 };
enum state { FREE, OPENING, OPEN, ECHOING, ANSWERED, DONE };

#define DEFAULT_PORT 80
#define ECHO_PORT 7
#define ECHO_MAX 512 /* bytes that are sent back at a time */
#define CONNECTIONS 64
#define HEADER (sizeof(struct tcp) - sizeof(struct ipv4))
#define WINDOW 16384
#define FIRST_RETRY (SECOND / 5)
#define RETRIES 7
#define IDLE (60 * SECOND)
#define LINGER (2 * SECOND) /* in which a client may repeat its last segment */

/* Our sequence numbers: `first` is the SYN, then the answer, then the FIN; of an echo, the next byte to be
 * acknowledged, while `echo` waits for that. */
struct connection {
    enum state state;
    const struct nic *nic;
    uint8_t mac[6];
    uint32_t address;
    uint16_t port, local_port;
    uint32_t first, expected; /* expected: the peer's next sequence number */
    bool acknowledged, peer_done;
    unsigned retries;
    uint64_t due;
    size_t echoed;
    uint8_t echo[ECHO_MAX];
};

struct arrival { /* what a segment says, in host order */
    uint32_t sequence, acknowledged;
    uint8_t flags;
    const uint8_t *data;
    size_t size;
};

static struct connection connections[CONNECTIONS];
static char answer[1024];
static size_t answer_size;

void tcp_prepare(void)
{
    static char body[800];
    size_t size = format(body, sizeof body, "%s\n", command_line());
    answer_size = format(answer, sizeof answer,
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %lu\r\n\r\n%s", size, body);
}

/* --- sending --- */

static struct {
    struct tcp tcp;
    uint8_t data[sizeof answer];
} out;

/* Sends `size` bytes that stand in out.data, of which `options` are TCP options. */
static void transmit(const struct nic *nic, const uint8_t mac[6], uint32_t to, size_t options,
    size_t size)
{
    out.tcp.words = (uint8_t)((HEADER + options) / 4 << 4);
    out.tcp.window = net16(WINDOW);
    out.tcp.urgent = 0;
    out.tcp.checksum = 0;
    out.tcp.checksum = checksum(&out.tcp.source, HEADER + size, nic->address, to, PROTOCOL_TCP);
    ipv4_send(nic, &out.tcp.ip, mac, nic->address, to, PROTOCOL_TCP, HEADER + size);
}

static void send(const struct connection *c, uint8_t flags, uint32_t sequence, size_t options,
    size_t size)
{
    out.tcp.source = net16(c->local_port);
    out.tcp.destination = net16(c->port);
    out.tcp.sequence = net32(sequence);
    out.tcp.acknowledged = net32(c->expected);
    out.tcp.flags = flags;
    transmit(c->nic, c->mac, c->address, options, size);
}

static void send_opening(const struct connection *c)
{
    uint16_t segment = (uint16_t)(device(c->nic->handle)->net.mtu - IPV4_SIZE - HEADER);
    uint8_t maximum[4] = { 2, 4, (uint8_t)(segment >> 8), (uint8_t)segment };
    memcpy(out.data, maximum, sizeof maximum);
    send(c, SYN | ACK, c->first, sizeof maximum, sizeof maximum);
}

static void send_answer(const struct connection *c)
{
    memcpy(out.data, answer, answer_size);
    send(c, ACK | PUSH | FIN, c->first + 1, 0, answer_size);
}

static void send_echo(const struct connection *c)
{
    memcpy(out.data, c->echo, c->echoed);
    send(c, ACK | PUSH, c->first, 0, c->echoed);
}

static uint32_t after_answer(const struct connection *c)
{
    return c->first + 1 + (uint32_t)answer_size + 1;
}

static void send_acknowledgement(const struct connection *c)
{
    uint32_t next = c->state == ECHOING ? c->first + (uint32_t)c->echoed : c->first + 1;
    send(c, ACK, c->state >= ANSWERED ? after_answer(c) : next, 0, 0);
}

/* For a segment that belongs to no connection. */
static void refuse(const struct nic *nic, const struct tcp *segment, const struct arrival *a)
{
    bool answers = a->flags & ACK;
    uint32_t length = (uint32_t)a->size + !!(a->flags & SYN) + !!(a->flags & FIN);
    out.tcp.source = segment->destination;
    out.tcp.destination = segment->source;
    out.tcp.sequence = answers ? segment->acknowledged : 0;
    out.tcp.acknowledged = answers ? 0 : net32(a->sequence + length);
    out.tcp.flags = answers ? RST : RST | ACK;
    transmit(nic, segment->ip.ethernet.from, net32(segment->ip.source), 0, 0);
}

/* --- a client of one line --- */

static bool told;

static void send_asking(const struct nic *nic, const uint8_t mac[6], uint32_t to, uint16_t port, uint8_t flags,
    uint32_t sequence, uint32_t expected, size_t size)
{
    out.tcp.source = net16(TCP_ASK_PORT);
    out.tcp.destination = net16(port);
    out.tcp.sequence = net32(sequence);
    out.tcp.acknowledged = net32(expected);
    out.tcp.flags = flags;
    transmit(nic, mac, to, 0, size);
}

void tcp_ask(const struct nic *nic, uint32_t to, uint16_t port)
{
    if (!told)
        send_asking(nic, nic->gateway_mac, to, port, SYN, 0, 0, 0);
}

/* The peer's answer to the SYN gets the line; the first bytes of its reply end the connection. */
static void on_asked(const struct nic *nic, const struct tcp *s, const struct arrival *a)
{
    const uint8_t *mac = s->ip.ethernet.from;
    uint32_t from = net32(s->ip.source);
    uint16_t port = net16(s->source);
    if (a->flags & SYN) {
        memcpy(out.data, "question\n", 9);
        send_asking(nic, mac, from, port, ACK | PUSH, a->acknowledged, a->sequence + 1, 9);
    } else if (a->size) {
        if (!told)
            print("tcp reply from %s:%u, %lu bytes\n", address_text(from), port, a->size);
        told = true;
        send_asking(nic, mac, from, port, RST, a->acknowledged, 0, 0);
    }
}

/* --- connections --- */

static bool listens(uint16_t port)
{
    const char *wanted;
    unsigned i;
    for (i = 0; (wanted = option("--tcp=", i)); i++)
        if (to_number(wanted) == port)
            return true;
    return port == ECHO_PORT || (i == 0 && port == DEFAULT_PORT);
}

static struct connection *find(const struct nic *nic, const struct tcp *s)
{
    for (struct connection *c = connections; c < connections + CONNECTIONS; c++)
        if (c->state != FREE && c->nic == nic && c->address == net32(s->ip.source)
            && c->port == net16(s->source) && c->local_port == net16(s->destination))
            return c;
    return NULL;
}

/* A free place, or that of somebody who has gone; NULL: the client may try again later. */
static struct connection *place(void)
{
    struct connection *gone = NULL;
    for (struct connection *c = connections; c < connections + CONNECTIONS; c++)
        if (c->state == FREE)
            return c;
        else if (c->state == DONE)
            gone = c;
    return gone;
}

static void wait_for_peer(struct connection *c, enum state state)
{
    c->state = state;
    c->retries = 0;
    c->due = now() + FIRST_RETRY;
}

static void open_connection(struct connection *c, const struct nic *nic, const struct tcp *s,
    const struct arrival *a)
{
    *c = (struct connection) {
        .nic = nic,
        .address = net32(s->ip.source),
        .port = net16(s->source),
        .local_port = net16(s->destination),
        .first = (uint32_t)(now() >> 6),
        .expected = a->sequence + 1,
    };
    memcpy(c->mac, s->ip.ethernet.from, 6);
    note("tcp from %s:%u to port %u\n", address_text(c->address), c->port, c->local_port);
    wait_for_peer(c, OPENING);
    send_opening(c);
}

static void on_opening(const struct nic *nic, const struct tcp *s, const struct arrival *a,
    struct connection *c)
{
    if (!listens(net16(s->destination)))
        return refuse(nic, s, a);
    /* The same SYN again: our answer was lost. Another one: the client has forgotten the old. */
    if (c && c->state == OPENING && c->expected == a->sequence + 1)
        return send_opening(c);
    if (c || (c = place()))
        open_connection(c, nic, s, a);
}

static void take_acknowledgement(struct connection *c, uint32_t acknowledged)
{
    if (c->state == OPENING && acknowledged == c->first + 1) {
        c->state = c->local_port == ECHO_PORT ? ECHOING : OPEN;
        c->first += c->state == ECHOING;
        c->due = now() + IDLE;
    }
    if (c->state == ANSWERED && !c->acknowledged && acknowledged == after_answer(c)) {
        c->acknowledged = true;
        c->due = now() + IDLE;
    }
}

/* Takes what is new in the segment. true: it ends a line, or the stream. */
static bool take_data(struct connection *c, const struct arrival *a)
{
    uint32_t known = c->expected - a->sequence;
    bool line = false;
    if (known > a->size || (c->peer_done && a->size))
        return false;
    for (size_t i = known; i < a->size; i++)
        line |= a->data[i] == '\n';
    c->expected += (uint32_t)a->size - known;
    if (a->flags & FIN && !c->peer_done) {
        c->peer_done = true;
        c->expected++;
    }
    return line || c->peer_done;
}

/* What comes before the last echo has arrived is not taken, and so comes again. */
static void on_echo(struct connection *c, const struct arrival *a)
{
    if (c->echoed && a->acknowledged == c->first + (uint32_t)c->echoed) {
        c->first += (uint32_t)c->echoed;
        c->echoed = 0;
        c->due = now() + IDLE;
    }
    if (!c->echoed && a->size && a->sequence == c->expected) {
        c->echoed = a->size < ECHO_MAX ? a->size : ECHO_MAX;
        memcpy(c->echo, a->data, c->echoed);
        c->expected += (uint32_t)c->echoed;
        wait_for_peer(c, ECHOING);
        send_echo(c);
    } else if (!c->echoed && a->flags & FIN && a->sequence == c->expected) {
        c->expected++;
        send(c, ACK | FIN, c->first, 0, 0);
        c->state = FREE;
    } else if (a->size || a->flags & FIN) {
        send_acknowledgement(c);
    }
}

static void on_segment(struct connection *c, const struct arrival *a)
{
    take_acknowledgement(c, a->acknowledged);
    if (c->state == ECHOING)
        return on_echo(c, a);
    bool complete = take_data(c, a);
    if (c->state == OPEN && complete) {
        wait_for_peer(c, ANSWERED);
        send_answer(c);
    } else if (a->size || a->flags & FIN) {
        send_acknowledgement(c);
    }
    if (c->state == ANSWERED && c->acknowledged && c->peer_done) {
        c->state = DONE;
        c->due = now() + LINGER;
    }
}

void tcp_handle(const struct nic *nic, const struct tcp *s, size_t size)
{
    size_t header = size < HEADER ? 0 : (size_t)(s->words >> 4) * 4;
    if (header < HEADER || header > size)
        return;
    struct arrival a = { net32(s->sequence), net32(s->acknowledged), s->flags,
        (const uint8_t *)&s->source + header, size - header };
    if (net16(s->destination) == TCP_ASK_PORT && option("--ask=", 0))
        return on_asked(nic, s, &a);
    struct connection *c = find(nic, s);
    if (a.flags & RST) {
        if (c && a.sequence == c->expected)
            c->state = FREE;
    } else if (a.flags & SYN) {
        on_opening(nic, s, &a, c);
    } else if (c) {
        on_segment(c, &a);
    } else {
        refuse(nic, s, &a);
    }
}

/* --- time --- */

static void on_time(struct connection *c)
{
    bool waits = c->state == OPENING || (c->state == ANSWERED && !c->acknowledged)
        || (c->state == ECHOING && c->echoed);
    if (!waits || c->retries == RETRIES) {
        c->state = FREE;
        return;
    }
    c->retries++;
    c->due = now() + (FIRST_RETRY << c->retries);
    if (c->state == OPENING)
        send_opening(c);
    else if (c->state == ECHOING)
        send_echo(c);
    else
        send_answer(c);
}

uint64_t tcp_tick(void)
{
    uint64_t next = FOREVER, at = now();
    for (struct connection *c = connections; c < connections + CONNECTIONS; c++) {
        if (c->state != FREE && c->due <= at)
            on_time(c);
        if (c->state != FREE && c->due < next)
            next = c->due;
    }
    return next;
}
