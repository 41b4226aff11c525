#include "manifest.h"

#include <err.h>
#include <stdlib.h>
#include <string.h>

size_t manifest_size(const struct manifest *m)
{
    return sizeof *m + m->entries * sizeof m->device[0];
}

/* The same things a real tender checks, and no more: it does not look at names, nor at types. */
bool manifest_valid(const struct manifest *m, size_t size)
{
    if (size < sizeof *m || m->version != MANIFEST_VERSION)
        return false;
    if (m->entries < 1 || m->entries > MANIFEST_ENTRIES_MAX || size != manifest_size(m))
        return false;
    if (m->device[0].type != DEVICE_RESERVED_FIRST || m->device[0].name[0])
        return false;
    for (unsigned i = 0; i < m->entries; i++)
        if (m->device[i].name[sizeof m->device[i].name - 1] || m->device[i].attached)
            return false;
    return true;
}

struct device *manifest_find(struct manifest *m, const char *name, uint32_t type)
{
    for (struct device *d = m->device; d < m->device + m->entries; d++)
        if (d->type == type && strcmp(d->name, name) == 0)
            return d;
    return NULL;
}

struct device *manifest_handle(struct manifest *m, uint64_t handle, uint32_t type)
{
    return handle < m->entries && m->device[handle].type == type ? &m->device[handle] : NULL;
}

bool manifest_has_net(const struct manifest *m)
{
    FOR_EACH_ATTACHED(d, m, DEVICE_NET)
        return true;
    return false;
}

static const char *type_name(uint32_t type)
{
    return type == DEVICE_BLOCK ? "BLOCK_BASIC" : type == DEVICE_NET ? "NET_BASIC" : "<undefined type>";
}

void manifest_require_attached(const struct manifest *m)
{
    bool missing = false;
    for (const struct device *d = m->device; d < m->device + m->entries; d++) {
        if (d->type >= DEVICE_RESERVED_FIRST || d->attached)
            continue;
        warnx("Device '%s' of type %s declared but not attached.", d->name, type_name(d->type));
        missing = true;
    }
    if (missing)
        errx(1, "All declared devices must be attached. See --help for syntax.");
}
