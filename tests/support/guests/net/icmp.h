#pragma once

#include "nic.h"

/* Answers echo requests. */
void icmp_handle(const struct nic *nic, struct icmp *packet, size_t size);
