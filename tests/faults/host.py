"""`python -m tests.faults.host FD`: keeps one host of a `Network` alive, and does what must be done inside of it.

It is started in namespaces of its own, for users, the network and mounts, and needs no privilege outside of them. A
TUN device is its only line; what goes over that is read and written by whoever holds its descriptor, which goes out by
the socket FD. Nothing has a name that another run could meet, and when this process ends, which it does with its
socket, the kernel removes it all.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys

DEVICE = "wire"
MTU_BYTES = 1500
HOSTS_FILE = "/etc/hosts"

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_IFREQ_BYTES = 40
MAX_COMMAND_BYTES = 1024


def main() -> None:
    """Make the line, hand it over, then do what is asked for until nobody asks any more."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    address, names = sys.argv[2:]
    line = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(line, _TUNSETIFF, struct.pack(f"16sH{_IFREQ_BYTES - 18}x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{address}/8", "dev", DEVICE)
    _run("ip", "link", "set", DEVICE, "up", "mtu", str(MTU_BYTES))
    _run("mount", "--bind", names, HOSTS_FILE)
    socket.send_fds(asked, [b"up"], [line])
    os.close(line)
    while command := asked.recv(MAX_COMMAND_BYTES).decode():
        match command.split():
            case ["socket"]:
                with socket.socket() as made:  # it belongs to the namespace that it was made in, whoever uses it
                    socket.send_fds(asked, [b"socket"], [made.fileno()])
            case ["move", old, new]:
                _run("ip", "address", "del", f"{old}/8", "dev", DEVICE)
                _run("ip", "address", "add", f"{new}/8", "dev", DEVICE)
                asked.send(b"moved")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
