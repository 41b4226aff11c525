#include "decode.h"

#include <string.h>

enum { REX_B = 1, REX_X = 2, REX_R = 4 };

static const uint8_t saved[16] = { REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI,
    REG_RDI, REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15 };

struct instruction decode(const greg_t *r)
{
    const uint8_t *at = (const uint8_t *)r[REG_RIP];
    struct instruction i = { 0 };
    if ((*at & 0xf0) == 0x40)
        i.rex = *at++;
    i.opcode = at;
    i.rest = (uint64_t)at + (*at == 0x0f ? 2 : 1);
    return i;
}

static uint64_t register_value(unsigned number, const greg_t *r) { return (uint64_t)r[saved[number]]; }

static int32_t signed32(const uint8_t *at)
{
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Base, index and scale; `*at` moves behind what it used. */
static uint64_t scaled_address(const uint8_t **at, uint8_t mode, uint8_t rex, const greg_t *r)
{
    uint8_t sib = *(*at)++;
    unsigned index = (sib >> 3 & 7) | (rex & REX_X ? 8 : 0), base = sib & 7;
    uint64_t address = index == 4 ? 0 : register_value(index, r) << (sib >> 6);
    if (base != 5 || mode != 0)
        return address + register_value(base | (rex & REX_B ? 8 : 0), r);
    address += (uint64_t)signed32(*at);
    *at += 4;
    return address;
}

struct operand decode_operand(const struct instruction *i, const greg_t *r)
{
    const uint8_t *at = (const uint8_t *)i->rest;
    uint8_t modrm = *at++, mode = modrm >> 6, rm = modrm & 7;
    struct operand o = { .reg = (modrm >> 3 & 7) | (i->rex & REX_R ? 8U : 0) };
    o.is_register = mode == 3;
    o.rm = saved[rm | (i->rex & REX_B ? 8 : 0)];
    bool relative = mode == 0 && rm == 5;
    if (!o.is_register && !relative)
        o.address = rm == 4 ? scaled_address(&at, mode, i->rex, r) : (uint64_t)r[o.rm];
    if (mode == 1)
        o.address += (uint64_t)(int8_t)*at++;
    if (mode == 2 || relative) {
        o.address += (uint64_t)signed32(at);
        at += 4;
    }
    if (relative)
        o.address += (uint64_t)at;
    o.next = (uint64_t)at;
    return o;
}
