"""How QEMU is to run the machine's processors here."""

import os
import re
from pathlib import Path

# QEMU's emulation brings AMD's virtualisation along, so that the machine has a /dev/kvm of its own.
# Without the features that an emulator pays for at each access to memory of user space, and with page tables of four
# levels, it takes a tenth less processor time.
EMULATION = ("-accel", "tcg,thread=multi", "-cpu", "max,+svm,-la57,-smap,-smep,-umip,-pku")
HARDWARE = ("-accel", "kvm", "-cpu", "host")


def accelerator() -> tuple[str, ...]:
    """Return QEMU's words for KVM where it works, for emulation elsewhere.

    A /dev/kvm alone proves nothing: under a paravirtual KVM, whose processors show neither ``vmx`` nor ``svm``,
    QEMU stops with an internal error at the guest's first vector instruction.
    """
    flags = re.search("^flags.*", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    usable = flags and {"vmx", "svm"} & set(flags[0].split()) and os.access("/dev/kvm", os.R_OK | os.W_OK)
    return HARDWARE if usable else EMULATION
