/* CPU faults of an hvt guest. The tender starts the guest with descriptor tables that the guest
 * cannot reach, so even the first fault needs our own code segment besides the vectors. */
#include "traps.h"

#include "platform.h"

#define CODE_SEGMENT 8
#define CODE_DESCRIPTOR 0x00af9b000000ffffUL /* 64-bit code, present, ring 0 */
#define INTERRUPT_GATE 0x8e00
#define VECTORS 32

struct gate {
    uint16_t offset_low, selector, flags, offset_middle;
    uint32_t offset_high, reserved;
};
struct table {
    uint16_t limit;
    const void *base;
} __attribute__((packed));
struct frame { /* what the CPU pushes */
    uint64_t rip, cs, rflags, rsp, ss;
};

static const uint64_t segments[] = { 0, CODE_DESCRIPTOR };
static struct gate gates[VECTORS];

static _Noreturn void trap(const char *type, uint64_t code, const struct frame *f)
{
    print("Solo5: trap: type=%s ec=0x%lx rip=0x%lx rsp=0x%lx rflags=0x%lx\n", type, code, f->rip,
        f->rsp, f->rflags);
    ABORT("Fatal trap");
}

#define VECTOR(NAME)                                                                              \
    __attribute__((interrupt)) static void on_##NAME(struct frame *frame)                         \
    {                                                                                             \
        trap("#" #NAME, 0, frame);                                                                \
    }
#define VECTOR_WITH_CODE(NAME)                                                                    \
    __attribute__((interrupt)) static void on_##NAME(struct frame *frame, uint64_t code)          \
    {                                                                                             \
        trap("#" #NAME, code, frame);                                                             \
    }

VECTOR(DE)
VECTOR(UD)
VECTOR_WITH_CODE(GP)
VECTOR_WITH_CODE(PF)

static void set_gate(unsigned vector, void *handler)
{
    uint64_t at = (uint64_t)handler;
    gates[vector] = (struct gate) {
        .offset_low = (uint16_t)at,
        .offset_middle = (uint16_t)(at >> 16),
        .offset_high = (uint32_t)(at >> 32),
        .selector = CODE_SEGMENT,
        .flags = INTERRUPT_GATE,
    };
}

void traps_enable(void)
{
    struct table gdt = { sizeof segments - 1, segments }, idt = { sizeof gates - 1, gates };
    set_gate(0, on_DE);
    set_gate(6, on_UD);
    set_gate(13, on_GP);
    set_gate(14, on_PF);
    __asm__ volatile("lgdt %0; lidt %1" : : "m"(gdt), "m"(idt) : "memory");
}
