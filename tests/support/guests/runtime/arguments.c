/* The command line, split by MirageOS's rule. */
#include "guest.h"

#define LINE_MAX 8192
#define WORDS_MAX 256

void arguments_parse(const char *line);
bool arguments_quiet(void);

static const char *whole;
static char text[LINE_MAX];
static const char *words[WORDS_MAX];
static unsigned word_count;
static bool quiet;

static bool starts_with(const char *word, const char *prefix)
{
    return memcmp(word, prefix, strlen(prefix)) == 0;
}

static const char *after_word(const char *line)
{
    while (*line && *line != ' ')
        line++;
    return line + (*line == ' ');
}

/* Solo5's own words may stand at the front only; they are not the guest's. */
static const char *skip_solo5(const char *line)
{
    for (; starts_with(line, "--solo5:"); line = after_word(line))
        quiet = starts_with(line, "--solo5:quiet") || starts_with(line, "--solo5:error")
            || starts_with(line, "--solo5:warn");
    return line;
}

void arguments_parse(const char *line)
{
    char *out = text;
    bool quoted = false, in_word = false;
    whole = line = skip_solo5(line);
    for (; *line; line++) {
        if (*line == ' ' && !quoted) {
            if (in_word)
                *out++ = 0;
            in_word = false;
            continue;
        }
        if (!in_word && word_count < WORDS_MAX)
            words[word_count++] = out;
        in_word = true;
        if (*line == '"')
            quoted = !quoted;
        else if (*line == '\\' && line[1])
            *out++ = *++line;
        else
            *out++ = *line;
    }
}

bool arguments_quiet(void) { return quiet; }

const char *command_line(void) { return whole; }

unsigned argument_count(void) { return word_count; }

const char *argument(unsigned index) { return words[index]; }

const char *option(const char *prefix, unsigned n)
{
    for (unsigned i = 0; i < word_count; i++)
        if (starts_with(words[i], prefix) && n-- == 0)
            return words[i] + strlen(prefix);
    return NULL;
}

uint64_t to_number(const char *digits)
{
    uint64_t value = 0;
    for (; *digits >= '0' && *digits <= '9'; digits++)
        value = value * 10 + (uint64_t)(*digits - '0');
    return value;
}

uint64_t option_number(const char *prefix, uint64_t otherwise)
{
    const char *value = option(prefix, 0);
    return value ? to_number(value) : otherwise;
}

bool flag(const char *word)
{
    const char *rest = option(word, 0);
    return rest && !*rest;
}
