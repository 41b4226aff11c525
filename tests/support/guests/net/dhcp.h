/* A DHCP client (RFC 2131) without renewals. */
#pragma once

#include "nic.h"

/* Returns once the device has a lease; prints it. */
void dhcp_open(struct nic *nic, unsigned handle);
