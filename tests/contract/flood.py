"""A guest that sends as fast as it can: `flood.py TAP FRAME`, a frame in hexadecimal, whose UDP ports are counted up.

It prints a line when it has begun, and ends when its stdin is closed.
"""

import contextlib
import fcntl
import os
import select
import struct
import sys

fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), 0x1002))
frame, sent = bytearray.fromhex(sys.argv[2]), 0
while not sent or not select.select([0], [], [], 0)[0]:
    for number in range(1000):
        struct.pack_into("!HH", frame, 34, 1024 + sent % 60000, 1024 + number * 7 % 60000)
        with contextlib.suppress(BlockingIOError):
            os.write(fd, frame)
            sent += 1
    if sent <= 1000:
        print("begun", flush=True)
