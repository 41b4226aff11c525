"""A guest that sends as fast as it can: `flood.py TAP FRAME…`, frames in hexadecimal, UDP ports counted up in each.

It prints a line when it has begun, and when its stdin is closed, how many frames it sent and in how many seconds.
"""

import fcntl
import os
import select
import struct
import sys
import time

fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), 0x1002))
frames = [bytearray.fromhex(word) for word in sys.argv[2:]]
sent, begun = 0, time.monotonic()
while not sent or not select.select([0], [], [], 0)[0]:
    for number in range(1000):
        for frame in frames:
            struct.pack_into("!HH", frame, 34, 1024 + sent % 60000, 1024 + number * 7 % 60000)
            try:
                os.write(fd, frame)
            except BlockingIOError:
                continue
            sent += 1
    if sent <= 1000 * len(frames):
        print("begun", flush=True)
print(sent, time.monotonic() - begun, flush=True)
