/* What an image says about itself: the two Solo5 notes, and the interpreter that keeps a host
 * kernel from running the file as a program. A guest states its devices once, at top level:
 *
 *     MANIFEST(NET("service"), BLOCK("storage"));
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum device_type { DEVICE_BLOCK = 1, DEVICE_NET = 2, DEVICE_RESERVED_FIRST = 1 << 30 };

/* A manifest entry. The guest names it; the tender fills in the rest when it attaches the device. */
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
    uint64_t host; /* spt: the file descriptor to use; hvt: of no meaning to the guest */
    bool attached;
};
_Static_assert(sizeof(struct device) == 104, "manifest version 1 has entries of 104 bytes");

struct manifest {
    uint32_t version;
    uint32_t entries;
    struct device device[];
};

struct note_header {
    uint32_t name_size, payload_size, type;
    char name[8];
};

#define NOTE_ABI1 0x31494241
#define NOTE_MFT1 0x3154464d

#define NET(NAME) { .name = NAME, .type = DEVICE_NET }
#define BLOCK(NAME) { .name = NAME, .type = DEVICE_BLOCK }

/* KIND("prefix0"), … KIND("prefix62"): as many devices as a manifest can hold. */
#define TEN(KIND, P)                                                                              \
    KIND(P "0"), KIND(P "1"), KIND(P "2"), KIND(P "3"), KIND(P "4"), KIND(P "5"), KIND(P "6"),     \
        KIND(P "7"), KIND(P "8"), KIND(P "9")
#define SIXTY_THREE(KIND, P)                                                                      \
    TEN(KIND, P), TEN(KIND, P "1"), TEN(KIND, P "2"), TEN(KIND, P "3"), TEN(KIND, P "4"),          \
        TEN(KIND, P "5"), KIND(P "60"), KIND(P "61"), KIND(P "62")

#define NOTE_SECTION(NAME) __attribute__((section(NAME), used, aligned(8)))

#define DEVICES(...) { { .type = DEVICE_RESERVED_FIRST }, ##__VA_ARGS__ }
#define DEVICE_COUNT(...) (sizeof((struct device[])DEVICES(__VA_ARGS__)) / sizeof(struct device))

#define MANIFEST(...)                                                                             \
    static const struct {                                                                         \
        struct note_header header;                                                                \
        uint32_t padding; /* the payload starts at a multiple of 8 */                             \
        uint32_t version, entries;                                                                \
        struct device device[DEVICE_COUNT(__VA_ARGS__)];                                          \
    } manifest_note NOTE_SECTION(".note.solo5.manifest") = {                                      \
        .header = { 6, 12 + sizeof manifest_note.device, NOTE_MFT1, "Solo5" },                    \
        .version = 1,                                                                             \
        .entries = DEVICE_COUNT(__VA_ARGS__),                                                     \
        .device = DEVICES(__VA_ARGS__),                                                           \
    };                                                                                            \
    static const char interpreter[] NOTE_SECTION(".interp") = "/nonexistent/solo5/"

#define ABI(TARGET, VERSION)                                                                      \
    static const struct {                                                                         \
        struct note_header header;                                                                \
        uint32_t target, version, reserved[2];                                                    \
    } abi_note NOTE_SECTION(".note.solo5.abi") = {                                                \
        .header = { 6, 16, NOTE_ABI1, "Solo5" },                                                  \
        .target = TARGET,                                                                         \
        .version = VERSION,                                                                       \
    }
