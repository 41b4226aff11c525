#pragma once

#include <stdint.h>

/* Prints the next number where --count=MS has it due. When to call again. */
uint64_t counter_tick(void);
