#include "block.h"

#include <err.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SECTOR 512
#define TEXT_(X) #X
#define TEXT(X) TEXT_(X)

static struct device *declared(struct manifest *manifest, const char *name)
{
    struct device *d = manifest_find(manifest, name, DEVICE_BLOCK);
    if (!d)
        warnx("Resource not declared in manifest: '%s'", name);
    return d;
}

static bool attach(struct device *d, const char *path)
{
    d->fd = open(path, O_RDWR);
    if (d->fd == -1)
        err(1, "Could not open block device: %s", path);
    off_t capacity = lseek(d->fd, 0, SEEK_END);
    if (capacity == -1)
        err(1, "%s: Could not determine capacity", path);
    d->block.capacity = (uint64_t)capacity;
    d->attached = true;
    return true;
}

static bool set_sector_size(struct device *d, uint16_t size)
{
    if (size < 512 || size & (size - 1)) {
        warnx("Block size must be a multiple of 2 greater than or equal 512");
        return false;
    }
    d->block.sector_size = size;
    return true;
}

bool block_option(const char *word, struct manifest *manifest)
{
    char name[68], path[PATH_MAX + 1];
    uint16_t size;
    struct device *d;
    if (sscanf(word, "--block:%" NAME_MAX_LENGTH "[A-Za-z0-9]=%" TEXT(PATH_MAX) "s", name, path) == 2)
        return (d = declared(manifest, name)) && attach(d, path);
    if (sscanf(word, "--block-sector-size:%" NAME_MAX_LENGTH "[A-Za-z0-9]=%hu", name, &size) == 2)
        return (d = declared(manifest, name)) && set_sector_size(d, size);
    return false;
}

static void check(struct device *d)
{
    if (!d->block.sector_size)
        d->block.sector_size = DEFAULT_SECTOR;
    if (d->block.capacity % d->block.sector_size)
        errx(1, "%s: Backing storage size must be block aligned (%hu bytes)", d->name,
            d->block.sector_size);
    if (d->block.capacity < d->block.sector_size)
        errx(1, "%s: Backing storage must be at least 1 block (%hu bytes) in size", d->name,
            d->block.sector_size);
}

void block_setup(struct manifest *manifest)
{
    FOR_EACH_ATTACHED(d, manifest, DEVICE_BLOCK)
        check(d);
}
