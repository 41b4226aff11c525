/* A small host: answers ARP, ping, UDP echo (port 7 and every --udp=PORT), TCP echo (port 7) and one
 * TCP request per connection (every --tcp=PORT, or 80) with a short HTTP answer that repeats the
 * command line.
 *
 *   --fill=MB         fills so much memory; a datagram to port 9 is answered by the number of its intact pages
 *   --count=MS        prints `count N` every so many milliseconds, from 1 on
 *   --send=IP:PORT    sends a numbered datagram there every 200 ms, and prints what comes back
 *   --spoof-ip=A      every 200 ms, a datagram whose source address is A
 *   --spoof-mac=M     every 200 ms, a datagram from our address in a frame from M
 *   --spoof-arp=A     every 200 ms, the claim that A is ours
 *   --verbose         prints a line for everything that happens
 */
#pragma once

#include "nic.h"

_Noreturn void responder_run(struct nic *nics, unsigned count);

/* Prints if --verbose. */
#define note(...)                                                                                 \
    do                                                                                            \
        if (flag("--verbose"))                                                                    \
            print(__VA_ARGS__);                                                                   \
    while (0)
