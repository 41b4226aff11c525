/* TCP for servers of one short answer: a client connects, sends a line, gets the answer and the end
 * of the stream; on port 7, everything that it sends, for as long as it likes. Lost segments are sent
 * again, several clients may come at once. */
#pragma once

#include "nic.h"

/* Writes the answer, once. */
void tcp_prepare(void);
void tcp_handle(const struct nic *nic, const struct tcp *segment, size_t size);
/* Sends again what was not acknowledged and forgets who has gone. When to call again. */
uint64_t tcp_tick(void);
