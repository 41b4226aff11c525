#include "cpu.h"

#include <asm/prctl.h>
#include <err.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <ucontext.h>

#include "abi.h"
#include "decode.h"
#include "hypercall.h"
#include "raw.h"

#define IMAGE_BASE 0x100000
#define MSR_FS_BASE 0xc0000100
#define EXIT_HLT 5
#define EXIT_SHUTDOWN 8
enum { GENERAL_PROTECTION = 13, PAGE_FAULT = 14 };
enum { PRESENT = 1, WRITE = 2, USER = 4 }; /* of a page fault's error code */

struct table {
    uint16_t limit;
    uint64_t base;
} __attribute__((packed));

static uint64_t memory_end;
static struct table gdt, idt;
static uint16_t task;
static uint64_t cr2, fs_base, host_fs_base;
static bool fs_is_guests, in_host;

static bool in_guest_memory(uint64_t address, uint64_t size)
{
    return address >= IMAGE_BASE && address < memory_end && size <= memory_end - address;
}

static _Noreturn void unhandled_exit(unsigned reason, uint64_t rip)
{
    errx(1, "KVM: unhandled exit: exit_reason=0x%x, rip=0x%lx", reason, rip);
}

/* --- instructions --- */

static bool load_table(struct table *table, const struct operand *operand)
{
    if (operand->is_register)
        return false;
    *table = *(const struct table *)operand->address;
    return true;
}

static bool system_instruction(uint8_t opcode, const struct operand *o, greg_t *r)
{
    if (opcode == 0x00 && o->reg == 3 && o->is_register) /* ltr */
        return task = (uint16_t)r[o->rm], true;
    if (opcode == 0x01 && o->reg == 2)
        return load_table(&gdt, o);
    if (opcode == 0x01 && o->reg == 3)
        return load_table(&idt, o);
    if (opcode == 0x20 && o->reg == 2) /* mov from CR2 */
        return r[o->rm] = (greg_t)cr2, true;
    return false;
}

/* The only model-specific register a guest needs is the base of its thread-local storage. */
static bool write_msr(const greg_t *r)
{
    if ((uint32_t)r[REG_RCX] != MSR_FS_BASE)
        return false;
    fs_base = (uint64_t)r[REG_RDX] << 32 | (uint32_t)r[REG_RAX];
    return fs_is_guests = true;
}

static bool two_byte(const struct instruction *i, greg_t *r, uint64_t *next)
{
    struct operand operand;
    *next = i->rest;
    if (i->opcode[1] == 0x30)
        return write_msr(r);
    operand = decode_operand(i, r);
    *next = operand.next;
    return system_instruction(i->opcode[1], &operand, r);
}

/* Segments are flat in a process too: that the guest's own selectors are not loaded is not seen. */
static uint64_t far_return(greg_t *r)
{
    const uint64_t *stack = (const uint64_t *)r[REG_RSP];
    r[REG_RSP] += 16;
    return stack[0];
}

/* Performs the privileged instruction at RIP. false: it is none, or none we know. */
static bool emulate(greg_t *r)
{
    struct instruction i = decode(r);
    uint64_t next = i.rest;
    switch (i.opcode[0]) {
    case 0xef: /* out %eax, %dx */
        hypercall((uint16_t)r[REG_RDX], (uint32_t)r[REG_RAX]);
        break;
    case 0xe4 ... 0xe7:
    case 0xec ... 0xee:
        errx(1, "Invalid guest port access: port=0x%x", (uint16_t)r[REG_RDX]);
    case 0xf4:
        unhandled_exit(EXIT_HLT, (uint64_t)r[REG_RIP]);
    case 0xfa: /* cli, sti: nothing ever interrupts */
    case 0xfb:
        break;
    case 0x8e: /* mov to a segment register */
        next = decode_operand(&i, r).next;
        break;
    case 0xcb:
        next = far_return(r);
        break;
    case 0x0f:
        if (two_byte(&i, r, &next))
            break;
        return false;
    default:
        return false;
    }
    r[REG_RIP] = (greg_t)next;
    return true;
}

/* --- exceptions --- */

struct gate {
    uint16_t offset_low, selector;
    uint8_t stack, flags;
    uint16_t offset_middle;
    uint32_t offset_high, reserved;
};
#define GATE_PRESENT 0x80

/* The stack that the task state segment gives for a gate's number (from 1). */
static uint64_t task_stack(unsigned number)
{
    if (!in_guest_memory(gdt.base + task, 16))
        return 0;
    const uint64_t *d = (const uint64_t *)(gdt.base + task);
    uint64_t base = (d[0] >> 16 & 0xffffff) | (d[0] >> 56) << 24 | d[1] << 32;
    uint64_t at = base + 36 + 8 * (number - 1);
    return in_guest_memory(at, 8) ? *(const uint64_t *)at : 0;
}

static bool pushes_error(unsigned vector)
{
    return vector == 8 || (vector >= 10 && vector <= 14) || vector == 17;
}

/* As the CPU does it: the interrupted state goes onto the stack, and the vector's code runs. A guest
 * without a vector resets its machine. */
static void deliver(unsigned vector, uint64_t error, greg_t *r)
{
    uint64_t entry = idt.base + vector * sizeof(struct gate);
    const struct gate *gate = (const struct gate *)entry;
    if (!idt.base || !in_guest_memory(entry, sizeof *gate) || !(gate->flags & GATE_PRESENT))
        unhandled_exit(EXIT_SHUTDOWN, (uint64_t)r[REG_RIP]);
    uint64_t top = gate->stack & 7 ? task_stack(gate->stack & 7) : (uint64_t)r[REG_RSP];
    uint64_t frame[] = { error, (uint64_t)r[REG_RIP], 8, (uint64_t)r[REG_EFL], (uint64_t)r[REG_RSP], 0 };
    uint64_t at = (top & ~15UL) - sizeof frame;
    if (!in_guest_memory(at, sizeof frame))
        unhandled_exit(EXIT_SHUTDOWN, (uint64_t)r[REG_RIP]);
    __builtin_memcpy((void *)at, frame, sizeof frame);
    r[REG_RSP] = (greg_t)(pushes_error(vector) ? at : at + 8);
    r[REG_RIP] = (greg_t)((uint64_t)gate->offset_high << 32 | (uint64_t)gate->offset_middle << 16
        | gate->offset_low);
}

static void page_fault(greg_t *r)
{
    uint64_t error = (uint64_t)r[REG_ERR] & ~(uint64_t)USER; /* the guest is its machine's kernel */
    cr2 = (uint64_t)r[REG_CR2];
    /* The guest's page tables would allow this; it is the host that keeps text as it was loaded. */
    if ((error & (PRESENT | WRITE)) == (PRESENT | WRITE) && in_guest_memory(cr2, 1))
        errx(1, "KVM: host/guest translation fault: rip=0x%llx", r[REG_RIP]);
    deliver(PAGE_FAULT, error, r);
}

static void handle(greg_t *r)
{
    unsigned vector = (unsigned)r[REG_TRAPNO];
    if (vector == PAGE_FAULT)
        page_fault(r);
    else if (vector != GENERAL_PROTECTION || !emulate(r))
        deliver(vector, (uint64_t)r[REG_ERR], r);
}

/* --- signals --- */

/* The guest may have a thread-local storage of its own, and we need ours. */
static void set_fs(uint64_t base)
{
    if (fs_is_guests)
        raw_syscall(SYS_arch_prctl, ARCH_SET_FS, base, 0);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (in_host) /* a bad address that the guest gave us, in a table or on its stack */
        unhandled_exit(EXIT_SHUTDOWN, (uint64_t)r[REG_RIP]);
    set_fs(host_fs_base);
    in_host = true;
    handle(r);
    in_host = false;
    set_fs(fs_base);
}

void cpu_setup(uint64_t memory_size)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP };
    static char stack[256 * 1024];
    stack_t alternate = { .ss_sp = stack, .ss_size = sizeof stack };
    struct sigaction action
        = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
    memory_end = memory_size;
    raw_syscall(SYS_arch_prctl, ARCH_GET_FS, (uint64_t)&host_fs_base, 0);
    if (sigaltstack(&alternate, NULL) == -1)
        err(1, "sigaltstack");
    for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++)
        if (sigaction(faults[i], &action, NULL) == -1)
            err(1, "sigaction");
}
