/* The little of a C library that guests use. */
#include <stdarg.h>

#include "guest.h"

void *memcpy(void *to, const void *from, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((char *)to)[i] = ((const char *)from)[i];
    return to;
}

void *memset(void *to, int byte, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((char *)to)[i] = (char)byte;
    return to;
}

int memcmp(const void *a, const void *b, size_t size)
{
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < size; i++)
        if (x[i] != y[i])
            return x[i] - y[i];
    return 0;
}

size_t strlen(const char *s)
{
    size_t size = 0;
    while (s[size])
        size++;
    return size;
}

struct out {
    char *text;
    size_t size, used;
};

static void put(struct out *out, char c)
{
    if (out->used < out->size)
        out->text[out->used++] = c;
}

static void put_number(struct out *out, unsigned long value, unsigned base, unsigned width)
{
    char digits[20];
    unsigned n = 0;
    do
        digits[n++] = "0123456789abcdef"[value % base];
    while ((value /= base) || n < width);
    while (n)
        put(out, digits[--n]);
}

static void put_signed(struct out *out, int value)
{
    if (value < 0)
        put(out, '-');
    put_number(out, value < 0 ? -(unsigned)value : (unsigned)value, 10, 1);
}

static void format_into(struct out *out, const char *f, va_list args)
{
    for (; *f; f++) {
        if (*f != '%') {
            put(out, *f);
            continue;
        }
        unsigned width = 1;
        bool is_long = false;
        for (f++; *f == '0' || *f == '2'; f++)
            width = 2;
        if (*f == 'l')
            is_long = true, f++;
        if (*f == 's')
            for (const char *s = va_arg(args, const char *); *s; s++)
                put(out, *s);
        else if (*f == 'c')
            put(out, (char)va_arg(args, int));
        else if (*f == 'd')
            put_signed(out, va_arg(args, int));
        else
            put_number(out, is_long ? va_arg(args, unsigned long) : va_arg(args, unsigned),
                *f == 'x' ? 16 : 10, width);
    }
}

size_t format(char *text, size_t size, const char *f, ...)
{
    struct out out = { text, size - 1, 0 };
    va_list args;
    va_start(args, f);
    format_into(&out, f, args);
    va_end(args);
    text[out.used] = 0;
    return out.used;
}

void print(const char *f, ...)
{
    static char line[9216]; /* the longest command line and some words about it */
    struct out out = { line, sizeof line, 0 };
    va_list args;
    va_start(args, f);
    format_into(&out, f, args);
    va_end(args);
    print_bytes(line, out.used);
}
