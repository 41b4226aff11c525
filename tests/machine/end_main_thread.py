"""Make the main thread of a process call exit(2) alone, through ptrace(2); x86-64.

Leaves a zombie leader with live threads: what hvt's own sandbox makes of a failed write to its console.
"""

import ctypes
import os
import sys
from typing import ClassVar

PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_POKETEXT = (
    12, 13, 17, 0x4206, 0x4207, 4,
)  # fmt: skip
SYS_EXIT = 60
SYSCALL = 0x050F  # the instruction, little-endian

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class Registers(ctypes.Structure):
    _fields_: ClassVar = [
        (name, ctypes.c_ulonglong)
        for name in (
            "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss "
            "fs_base gs_base ds es fs gs"
        ).split()
    ]


def ptrace(request: int, pid: int, address: object = None, data: object = None) -> None:
    if libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(pid: int) -> None:
    ptrace(PTRACE_SEIZE, pid)
    ptrace(PTRACE_INTERRUPT, pid)
    os.waitpid(pid, 0x40000000)  # __WALL
    registers = Registers()
    ptrace(PTRACE_GETREGS, pid, None, ctypes.addressof(registers))
    ptrace(PTRACE_POKETEXT, pid, registers.rip, SYSCALL)
    registers.rax, registers.rdi, registers.orig_rax = SYS_EXIT, 0, 0xFFFFFFFFFFFFFFFF
    ptrace(PTRACE_SETREGS, pid, None, ctypes.addressof(registers))
    ptrace(PTRACE_DETACH, pid)


main(int(sys.argv[1]))
