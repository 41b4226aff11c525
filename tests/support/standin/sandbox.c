#include "sandbox.h"

#include <assert.h>
#include <err.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIELD(NAME) ((uint32_t)offsetof(struct seccomp_data, NAME))

static struct sock_filter code[BPF_MAXINSNS];
static unsigned used;

static unsigned emit(uint16_t op, uint32_t k)
{
    assert(used < BPF_MAXINSNS);
    code[used] = (struct sock_filter) { op, 0, 0, k };
    return used++;
}

static void load(uint32_t offset) { emit(BPF_LD | BPF_W | BPF_ABS, offset); }

/* A jump whose targets are set once they are known, as distances from the next instruction. */
static unsigned jump(uint16_t test, uint32_t value) { return emit(BPF_JMP | BPF_K | test, value); }

struct failures {
    unsigned at[16], count;
};

/* If the test comes out as `outcome`, the rule does not hold. */
static void fail_if(struct failures *f, unsigned jump_at, int outcome)
{
    assert(f->count < sizeof f->at / sizeof f->at[0]);
    f->at[f->count++] = jump_at << 1 | (unsigned)outcome;
}

static void resolve(const struct failures *f)
{
    for (unsigned i = 0; i < f->count; i++) {
        struct sock_filter *j = &code[f->at[i] >> 1];
        uint8_t distance = (uint8_t)(used - (f->at[i] >> 1) - 1);
        *(f->at[i] & 1 ? &j->jt : &j->jf) = distance;
    }
}

/* 64-bit comparison in 32-bit halves, the upper one first. */
static void compare(struct failures *f, const struct condition *c)
{
    uint32_t low = FIELD(args[0]) + c->argument * 8, high = low + 4;
    load(high);
    if (c->comparison == EQUAL) {
        fail_if(f, jump(BPF_JEQ, (uint32_t)(c->value >> 32)), 0);
        load(low);
        fail_if(f, jump(BPF_JEQ, (uint32_t)c->value), 0);
        return;
    }
    fail_if(f, jump(BPF_JGT, (uint32_t)(c->value >> 32)), 1);
    code[jump(BPF_JEQ, (uint32_t)(c->value >> 32))].jf = 2; /* below: no need for the lower half */
    load(low);
    fail_if(f, jump(BPF_JGT, (uint32_t)c->value), 1);
}

static void begin(void)
{
    if (used)
        return;
    load(FIELD(arch));
    code[jump(BPF_JEQ, AUDIT_ARCH_X86_64)].jt = 1;
    emit(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD);
}

void sandbox_allow_if(int call, unsigned count, const struct condition *condition)
{
    struct failures failures = { .count = 0 };
    begin();
    load(FIELD(nr));
    fail_if(&failures, jump(BPF_JEQ, (uint32_t)call), 0);
    for (unsigned i = 0; i < count; i++)
        compare(&failures, &condition[i]);
    emit(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    resolve(&failures);
}

void sandbox_allow(int call) { sandbox_allow_if(call, 0, NULL); }

/* With it every readable page could be executed. systemd's LockPersonality= forbids even asking,
 * which the real tenders meet with an assertion. */
static void require_sane_personality(void)
{
    int persona = personality(0xffffffff);
    assert(persona >= 0);
    if (persona & READ_IMPLIES_EXEC)
        errx(1, "Refusing to run with the personality READ_IMPLIES_EXEC");
}

void sandbox_close(void)
{
    require_sane_personality();
    emit(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD);
    struct sock_fprog program = { (unsigned short)used, code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == -1)
        err(1, "prctl(PR_SET_NO_NEW_PRIVS) failed");
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
        err(1, "seccomp(SECCOMP_SET_MODE_FILTER) failed");
}
