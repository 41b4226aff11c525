/* The tender's story, in the order in which the real ones do it: which error wins is part of what
 * a launcher sees. */
#include <err.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"
#include "block.h"
#include "net.h"
#include "options.h"

static size_t append(char *line, size_t used, const char *text)
{
    size_t size = strlen(text);
    if (used + size >= COMMAND_LINE_SIZE)
        errx(1, "Guest command line too long (max=%d characters)", COMMAND_LINE_SIZE - 1);
    memcpy(line + used, text, size + 1);
    return used + size;
}

struct placed place_inputs(uint64_t at, const struct start *start)
{
    struct placed placed = { at, at + manifest_size(start->manifest) };
    char *line = (char *)placed.command_line;
    size_t used = 0;
    memcpy((void *)placed.manifest, start->manifest, manifest_size(start->manifest));
    for (char **word = start->arguments; *word; word++) {
        used = append(line, used, *word);
        if (word[1])
            used = append(line, used, " ");
    }
    return placed;
}

int main(int argc, char **argv)
{
    (void)argc;
    struct image image = image_open(options_image(argv));
    image_require_abi(&image);
    struct start start = { .entry = image.entry, .manifest = image_manifest(&image) };
    struct options options = options_apply(argv, start.manifest);
    start.arguments = options.guest_arguments;
    start.memory_size = abi_prepare(options.memory_size, start.manifest);
    start.image_end = image_load(&image, start.memory_size);
    close(image.fd);
    block_setup(start.manifest);
    net_setup(start.manifest);
    manifest_require_attached(start.manifest);
    abi_enter(&start);
}
