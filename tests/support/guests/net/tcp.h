/* TCP for servers of one short answer: a client connects, sends a line, gets the answer and the end
 * of the stream; on port 7, everything that it sends, for as long as it likes. Lost segments are sent
 * again, several clients may come at once. */
#pragma once

#include "nic.h"

#define TCP_ASK_PORT 7777 /* where the connection of --ask= comes from */

/* Writes the answer, once. */
void tcp_prepare(void);
void tcp_handle(const struct nic *nic, const struct tcp *segment, size_t size);
/* Begins a connection by way of the gateway, for a line of text; not again once there was a reply. */
void tcp_ask(const struct nic *nic, uint32_t to, uint16_t port);
/* Sends again what was not acknowledged and forgets who has gone. When to call again. */
uint64_t tcp_tick(void);
