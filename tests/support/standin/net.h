/* Network devices: existing taps, by name. */
#pragma once

#include "manifest.h"

/* --net:NAME=IFACE and --net-mac:NAME=MAC. false: neither, or a bad one. */
bool net_option(const char *word, struct manifest *manifest);
/* Gives every attached device a MAC and adds it to the guest's poll set. */
void net_setup(struct manifest *manifest);
