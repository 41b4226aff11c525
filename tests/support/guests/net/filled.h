#pragma once

#include <stdint.h>

#define FILLED_PORT 9 /* UDP: answers how many pages of --fill= are intact */

/* Fills the memory of --fill=MB with values of which none is another's, once. */
void filled_prepare(void);
/* How many of its pages have their values still; reads them all. */
unsigned filled_intact(void);
