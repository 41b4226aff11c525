/* Reads a tar archive from a disk: prints its members, and the SHA-256 of each file. write=TEXT writes to the first
 * sector and reads it again, stay sleeps for ever. */
#include "sectors.h"
#include "sha256.h"

MANIFEST(BLOCK("storage"));

#define STORAGE 1
#define BLOCK_SIZE 512

static unsigned char block[BLOCK_SIZE];

static uint64_t octal(const unsigned char *digits, size_t count)
{
    uint64_t number = 0;
    for (size_t i = 0; i < count && digits[i] >= '0' && digits[i] <= '7'; i++)
        number = number * 8 + (uint64_t)(digits[i] - '0');
    return number;
}

static void name_of(const unsigned char *header, char name[257])
{
    size_t length = 0;
    for (size_t i = 345; i < 500 && header[i]; i++)
        name[length++] = (char)header[i];
    if (length)
        name[length++] = '/';
    for (size_t i = 0; i < 100 && header[i]; i++)
        name[length++] = (char)header[i];
    name[length] = 0;
}

static void hash_of(uint64_t offset, uint64_t size, char digits[65])
{
    static unsigned char content[BLOCK_SIZE];
    struct sha256 hash;
    unsigned char digest[32];
    sha256_begin(&hash);
    for (uint64_t at = 0; at < size; at += BLOCK_SIZE) {
        uint64_t left = size - at;
        if (!block_read(STORAGE, offset + at, content))
            ABORT("unreadable");
        sha256_add(&hash, content, left < BLOCK_SIZE ? left : BLOCK_SIZE);
    }
    sha256_end(&hash, digest);
    for (unsigned i = 0; i < sizeof digest; i++)
        format(digits + 2 * i, 3, "%02x", digest[i]);
}

int guest_main(void)
{
    uint64_t at = 0;
    char name[257], digits[65];
    sectors_announce(STORAGE);
    for (;;) {
        if (!block_read(STORAGE, at, block))
            ABORT("unreadable");
        if (!block[0])
            break;
        uint64_t size = octal(block + 124, 12);
        name_of(block, name);
        hash_of(at + BLOCK_SIZE, size, digits);
        print("member %s type %c size %lu sha256 %s\n", name, block[156], size, digits);
        at += BLOCK_SIZE + (size + BLOCK_SIZE - 1) / BLOCK_SIZE * BLOCK_SIZE;
    }
    print("end at %lu\n", at);
    const char *text = option("write=", 0);
    if (text) {
        sector_write(STORAGE, 0, text);
        print("sector 0: '%s'\n", sector_read(STORAGE, 0));
    }
    while (flag("stay"))
        wait_until(FOREVER);
    return 0;
}
