#pragma once

/* From here on a CPU fault of the guest ends it as an abort (255) instead of a machine reset. */
void traps_enable(void);
