/* What a guest can do, the same under hvt and spt. A guest is one C file with a MANIFEST and a
 * guest_main; its return value is its exit status. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "notes.h"

#define SECOND 1000000000ULL
#define FOREVER UINT64_MAX

int guest_main(void);

/* The command line as the tender handed it over, less leading --solo5:* words. */
const char *command_line(void);
/* Its words, split as MirageOS splits them: at spaces; double quotes group, a backslash takes the
 * next character as it is. */
unsigned argument_count(void);
const char *argument(unsigned index);
/* The n-th value (from 0) given as PREFIX…, or NULL. */
const char *option(const char *prefix, unsigned n);
uint64_t option_number(const char *prefix, uint64_t otherwise);
bool flag(const char *word);
uint64_t to_number(const char *digits);

void print_bytes(const char *data, size_t size);
/* One console write per call. Knows %s %c %d %u %x %lu %lx and %02x. */
__attribute__((format(printf, 1, 2))) void print(const char *format, ...);
__attribute__((format(printf, 3, 4))) size_t format(char *out, size_t size, const char *format, ...);

uint64_t memory_size(void);
void *free_memory(void); /* the first byte behind the image */

/* Device handles are indices into the manifest; the first device is 1. */
unsigned device_count(void);
const struct device *device(unsigned handle);
bool block_read(unsigned handle, uint64_t offset, void *sector);
bool block_write(unsigned handle, uint64_t offset, const void *sector);
size_t net_read(unsigned handle, void *frame, size_t size); /* 0: nothing is waiting */
bool net_write(unsigned handle, const void *frame, size_t size);

uint64_t now(void); /* nanoseconds; only differences mean something */
/* Sleeps until then, or until a network device has a frame; the set of devices that have one. */
uint64_t wait_until(uint64_t deadline);

_Noreturn void halt(int status);
_Noreturn void solo5_abort(void);
_Noreturn void abort_at(const char *file, unsigned line, const char *reason);
#define ABORT(REASON) abort_at(__FILE_NAME__, __LINE__, REASON)

void *memcpy(void *to, const void *from, size_t size);
void *memset(void *to, int byte, size_t size);
int memcmp(const void *a, const void *b, size_t size);
size_t strlen(const char *s);
