/* The manifest of a guest: the devices it declares, as they lie in the image and in guest memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MANIFEST_VERSION 1
#define MANIFEST_ENTRIES_MAX 64
#define NAME_MAX_LENGTH "67" /* for scanf */

enum device_type { DEVICE_BLOCK = 1, DEVICE_NET = 2, DEVICE_RESERVED_FIRST = 1 << 30 };

struct device {
    char name[68];
    uint32_t type;
    union {
        struct {
            uint64_t capacity; /* bytes */
            uint16_t sector_size;
        } block;
        struct {
            uint8_t mac[6];
            uint16_t mtu;
        } net;
    };
    union {
        int fd;
        uint64_t host;
    };
    bool attached;
};
_Static_assert(sizeof(struct device) == 104, "manifest version 1 has entries of 104 bytes");

struct manifest {
    uint32_t version;
    uint32_t entries;
    struct device device[];
};

bool manifest_valid(const struct manifest *manifest, size_t size);
size_t manifest_size(const struct manifest *manifest);

/* NULL: none of that name and type. */
struct device *manifest_find(struct manifest *manifest, const char *name, uint32_t type);
/* NULL: the guest's handle is of no device of that type. */
struct device *manifest_handle(struct manifest *manifest, uint64_t handle, uint32_t type);

bool manifest_has_net(const struct manifest *manifest);
/* Exits with 1, naming them, if there are devices that no option attached. */
void manifest_require_attached(const struct manifest *manifest);

/* The attached devices of one type, with their handles. */
#define FOR_EACH_ATTACHED(D, MANIFEST, TYPE)                                                      \
    for (__auto_type D = &(MANIFEST)->device[0]; D < (MANIFEST)->device + (MANIFEST)->entries; D++) \
        if (D->type == (TYPE) && D->attached)
