#include "options.h"

#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "block.h"
#include "net.h"

#define VERSION "v0.12.1-standin"

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: %s [ CORE OPTIONS ] [ MODULE OPTIONS ] [ -- ] KERNEL [ ARGS ]\n",
        program_invocation_short_name);
    fprintf(stderr,
        "Core options:\n"
        "  [ --mem=512 ] (guest memory in MB)\n"
        "    --help (display this help)\n"
        "    --version (display version information)\n"
        "Module options:\n"
        "    --net:NAME=IFACE\n"
        "    --net-mac:NAME=HWADDR\n"
        "    --block:NAME=PATH\n"
        "    --block-sector-size:NAME=SECTORSIZE\n"
        "%s",
        abi_option_help);
    exit(1);
}

static _Noreturn void version(void)
{
    fprintf(stderr, "%s tender, version %s\n", program_invocation_short_name, VERSION);
    fprintf(stderr, "ABI version %u\n", ABI_VERSION);
    exit(0);
}

static bool is(const char *word, const char *option) { return strcmp(word, option) == 0; }

const char *options_image(char **argv)
{
    char **word = argv + 1;
    for (; *word && **word == '-' && !is(*word, "--"); word++) {
        if (is(*word, "--help"))
            usage();
        if (is(*word, "--version"))
            version();
    }
    if (*word && is(*word, "--"))
        word++;
    if (!*word) {
        warnx("Missing KERNEL operand");
        usage();
    }
    return *word;
}

/* Lenient on purpose: a real tender reads "64M" and " +64" as 64, and wraps huge numbers. */
static bool memory_option(const char *word, uint64_t *memory_size)
{
    ssize_t mib;
    if (strncmp(word, "--mem=", 6) != 0)
        return false;
    if (sscanf(word, "--mem=%zd", &mib) != 1 || (uint64_t)mib << 20 == 0)
        errx(1, "Malformed argument to --mem");
    *memory_size = (uint64_t)mib << 20;
    return true;
}

struct options options_apply(char **argv, struct manifest *manifest)
{
    struct options options = { .memory_size = 512 * MIB };
    char **word = argv + 1;
    while (**word == '-' && !is(*word, "--")) {
        /* The word after --mem is tried as a device option at once, and again if that fails: so its
         * complaint comes twice, here as there. */
        bool was_memory = memory_option(*word, &options.memory_size);
        if (was_memory)
            word++;
        if (abi_option(*word) || net_option(*word, manifest) || block_option(*word, manifest))
            word++;
        else if (!was_memory) {
            warnx("Invalid option: `%s'", *word);
            usage();
        }
    }
    if (is(*word, "--"))
        word++;
    options.guest_arguments = word + 1;
    return options;
}
