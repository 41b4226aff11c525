#include "image.h"

#include <elf.h>
#include <err.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi.h"

#define GUEST_BASE 0x100000
#define PAGE 0x1000
#define NOTE_ABI1 0x31494241
#define NOTE_MFT1 0x3154464d

struct note_header {
    uint32_t name_size, payload_size, type;
    char name[8];
};

static _Noreturn void refuse(const struct image *image, const char *why)
{
    errx(1, "%s: Invalid or unsupported executable (%s)", image->name, why);
}

static void read_exactly(const struct image *image, void *to, size_t size, uint64_t offset)
{
    ssize_t n;
    for (; size; to = (char *)to + n, offset += (uint64_t)n, size -= (size_t)n)
        if ((n = pread(image->fd, to, size, (off_t)offset)) <= 0)
            refuse(image, "it ends too early");
}

static bool header_supported(const Elf64_Ehdr *h)
{
    return memcmp(h->e_ident, ELFMAG, SELFMAG) == 0 && h->e_ident[EI_CLASS] == ELFCLASS64
        && h->e_ident[EI_DATA] == ELFDATA2LSB && h->e_version == EV_CURRENT
        && h->e_ehsize == sizeof *h && h->e_phnum >= 1 && h->e_phentsize == sizeof(Elf64_Phdr)
        && h->e_type == ET_EXEC && h->e_machine == EM_X86_64;
}

struct image image_open(const char *name)
{
    struct image image = { .name = name, .fd = open(name, O_RDONLY) };
    Elf64_Ehdr header;
    if (image.fd == -1)
        err(1, "%s: Could not open", name);
    read_exactly(&image, &header, sizeof header, 0);
    if (!header_supported(&header))
        refuse(&image, "its header");
    image.entry = header.e_entry;
    image.segment_count = header.e_phnum;
    image.segment = calloc(header.e_phnum, sizeof *image.segment);
    if (!image.segment)
        err(1, "calloc");
    read_exactly(&image, image.segment, header.e_phnum * sizeof *image.segment, header.e_phoff);
    return image;
}

/* A segment's first note counts; a second one behind it is never seen. */
static bool note_is(const struct image *image, const Elf64_Phdr *segment, uint32_t type,
    struct note_header *header)
{
    if (segment->p_type != PT_NOTE)
        return false;
    if (segment->p_filesz < sizeof(Elf64_Nhdr))
        refuse(image, "a note is too short");
    if (segment->p_filesz < sizeof *header)
        return false;
    read_exactly(image, header, sizeof *header, segment->p_offset);
    return header->name_size == 6 && memcmp(header->name, "Solo5", 6) == 0 && header->type == type;
}

/* The payload of a note, malloc'ed, and its size less the padding that aligns it; NULL: no note. */
static void *note_payload(const struct image *image, uint32_t type, size_t align, size_t max,
    size_t *size)
{
    struct note_header header;
    const Elf64_Phdr *s = image->segment, *end = s + image->segment_count;
    while (s < end && !note_is(image, s, type, &header))
        s++;
    if (s == end)
        return NULL;
    uint64_t content = s->p_offset + sizeof header;
    uint64_t payload = (content + align - 1) / align * align;
    if (header.payload_size < 1 || header.payload_size > max
        || s->p_filesz < sizeof header + header.payload_size
        || header.payload_size <= payload - content)
        refuse(image, "a note is not of a valid size");
    *size = header.payload_size - (payload - content);
    void *data = calloc(1, max);
    if (!data)
        err(1, "calloc");
    read_exactly(image, data, *size, payload);
    return data;
}

void image_require_abi(const struct image *image)
{
    size_t size;
    uint32_t *abi = note_payload(image, NOTE_ABI1, 4, 32, &size);
    if (!abi)
        errx(1, "%s: No Solo5 ABI information found in executable", image->name);
    if (abi[0] != abi_target)
        errx(1, "%s: Executable is not for the %s target", image->name, abi_target_name);
    if (abi[1] != ABI_VERSION)
        errx(1, "%s: Executable requests unsupported ABI version %u", image->name, abi[1]);
    free(abi);
}

struct manifest *image_manifest(const struct image *image)
{
    size_t size, max = 12 + MANIFEST_ENTRIES_MAX * sizeof(struct device);
    struct manifest *manifest = note_payload(image, NOTE_MFT1, 8, max, &size);
    if (!manifest)
        errx(1, "%s: No Solo5 manifest found in executable", image->name);
    if (!manifest_valid(manifest, size))
        errx(1, "%s: Solo5 manifest is invalid", image->name);
    return manifest;
}

struct range {
    uint64_t start, end;
};

/* The pages a segment takes; `after` is where the previous one ended. */
static struct range segment_pages(const struct image *image, const Elf64_Phdr *s,
    uint64_t after, uint64_t size)
{
    uint64_t mask = s->p_align - 1, end;
    if (!s->p_align || s->p_align & mask)
        refuse(image, "a segment's alignment");
    if (s->p_memsz < s->p_filesz || __builtin_add_overflow(s->p_vaddr, s->p_memsz, &end)
        || __builtin_add_overflow(end, mask, &end))
        refuse(image, "a segment's size");
    struct range pages = { s->p_vaddr & ~mask, end & ~mask };
    if (pages.start < GUEST_BASE || pages.end > size)
        refuse(image, "a segment lies outside of guest memory");
    if (pages.start < after)
        refuse(image, "segments overlap or are out of order");
    if (pages.start % PAGE || pages.end % PAGE)
        refuse(image, "a segment is not aligned to pages");
    return pages;
}

static int segment_protection(const struct image *image, const Elf64_Phdr *s)
{
    if (s->p_flags & PF_W && s->p_flags & PF_X)
        refuse(image, "a segment is writable and executable");
    return (s->p_flags & PF_R ? PROT_READ : 0) | (s->p_flags & PF_W ? PROT_WRITE : 0)
        | (s->p_flags & PF_X ? PROT_EXEC : 0);
}

uint64_t image_load(const struct image *image, uint64_t size)
{
    uint64_t end = 0;
    if (image->entry < GUEST_BASE || image->entry >= size)
        refuse(image, "its entry point lies outside of guest memory");
    for (const Elf64_Phdr *s = image->segment; s < image->segment + image->segment_count; s++) {
        if (s->p_type != PT_LOAD || !s->p_filesz)
            continue;
        struct range pages = segment_pages(image, s, end, size);
        int protection = segment_protection(image, s);
        /* Guest addresses are our addresses, and fresh memory is zero already. */
        read_exactly(image, (void *)s->p_vaddr, s->p_filesz, s->p_offset);
        if (memory_protect(pages.start, pages.end, protection) == -1)
            errx(1, "%s: mprotect failed", image->name);
        end = pages.end;
    }
    return end;
}
