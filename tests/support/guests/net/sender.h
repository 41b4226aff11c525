/* What the guest sends of its own accord, every 200 ms: --send= and --spoof-…=. */
#pragma once

#include "nic.h"

/* Sends what is due. When to call again. */
uint64_t sender_tick(const struct nic *nic);
