"""Runs Sail so that nobody but its starter reaches it. A program of its own: `sail_process` starts it by its path.

Sail listens on TCP and asks nobody for a secret, so that any user of the machine could run Python code in it. Here
the kernel turns everybody away. The program is two processes:

- Sail's process. A seccomp filter stops each call of `listen` in it until the gatekeeper has answered.
- The gatekeeper. It closes the socket before `listen` goes on: a packet filter (SO_ATTACH_FILTER) on it drops every
  packet. For each connection that comes over the Unix socket, which lies in a directory of its user's alone, it binds a
  port, opens the filter for this one source address and port, connects, and closes the filter again. A port that is
  bound cannot be anybody else's source port. Afterwards it copies bytes from one connection to the other.

Both processes share one table of file descriptors (CLONE_FILES), since the filter is set by the descriptor. No
namespace is used: Sail must reach object stores. Linux asks no privileges for any of this; where a system wants them
for a packet filter, Sail is not started (`why_unguarded`).

`python -P sail_program.py DESCRIPTOR` takes the number of the Unix socket, which listens already. One line on stdout
says `ready` or `failed REASON`. The program ends when its standard input is closed.
"""

import ctypes
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
import threading
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
SECCOMP_RET_USER_NOTIF, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL = 0x7FC00000, 0x7FFF0000, 0x80000000
SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND = 0xC0502100, 0xC0182101
SECCOMP_USER_NOTIF_FLAG_CONTINUE = 1
CLONE_FILES = 0x400
SO_ATTACH_FILTER = 26

# Of Linux: the architecture as seccomp names it, then the numbers of clone, seccomp and listen.
ARCHITECTURES = {"x86_64": (0xC000003E, 56, 317, 50), "aarch64": (0xC00000B7, 220, 277, 201)}

# Instructions of the classic BPF: (code, jump if true, jump if false, operand).
Instruction = tuple[int, int, int, int]
LOAD_WORD, LOAD_HALF, EQUAL, RETURN = 0x20, 0x28, 0x15, 0x06
NETWORK_HEADER = 0xFFF00000
SOURCE_ADDRESS, SOURCE_PORT = NETWORK_HEADER + 12, 0
LOOPBACK = 0x7F000001
WHOLE_PACKET = 0xFFFFFFFF

NOBODY: list[Instruction] = [(RETURN, 0, 0, 0)]
PIECE = 1 << 20
PRIORITY = 5
"""Of Sail, as `nice` counts: what it computes may take all processors, and PostgreSQL and clients come first."""
ANSWER_SECONDS = 30.0


def only(port: int) -> list[Instruction]:
    """A packet filter that lets pass what comes from this port of 127.0.0.1."""
    return [
        (LOAD_WORD, 0, 0, SOURCE_ADDRESS),
        (EQUAL, 0, 3, LOOPBACK),
        (LOAD_HALF, 0, 0, SOURCE_PORT),
        (EQUAL, 0, 1, port),
        (RETURN, 0, 0, WHOLE_PACKET),
        (RETURN, 0, 0, 0),
    ]


def stops(architecture: int, call: int) -> list[Instruction]:
    """A seccomp filter that asks the gatekeeper about one system call; calls of another architecture kill."""
    return [
        (LOAD_WORD, 0, 0, 4),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, SECCOMP_RET_KILL),
        (LOAD_WORD, 0, 0, 0),
        (EQUAL, 0, 1, call),
        (RETURN, 0, 0, SECCOMP_RET_USER_NOTIF),
        (RETURN, 0, 0, SECCOMP_RET_ALLOW),
    ]


class _Program:
    """Instructions as the kernel wants them (struct sock_fprog). They must live as long as the call."""

    def __init__(self, instructions: list[Instruction]):
        code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
        self._code = ctypes.create_string_buffer(code, len(code))
        self.header = struct.pack("@HP", len(instructions), ctypes.addressof(self._code))


def _call(result: int, name: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def _filter(listening: socket.socket, instructions: list[Instruction]) -> None:
    program = _Program(instructions)
    listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program.header)


def why_unguarded() -> str | None:
    """Why others cannot be turned away on this machine; None where they can."""
    if sys.platform != "linux" or platform.machine() not in ARCHITECTURES:
        return f"there is no packet filter for it on {sys.platform} {platform.machine()}"
    try:
        with socket.socket() as scratch:
            _filter(scratch, NOBODY)
    except OSError as error:  # some kernels and containers want a capability for it
        return f"this user can set no packet filter here (SO_ATTACH_FILTER): {error.strerror}"
    return None


class Gatekeeper:
    """Decides who reaches what Sail listens on."""

    def __init__(self, clients: socket.socket, notices: int):
        self._clients = clients
        self._notices = notices
        self._closed: dict[int, socket.socket] = {}
        """Sockets of Sail that listen, by their ports."""
        self._opening = threading.Lock()
        self._port = 0

    def watch(self) -> None:
        """Close each socket before `listen` goes on, for as long as Sail lives."""
        while True:
            notice = bytearray(80)
            try:
                fcntl.ioctl(self._notices, SECCOMP_IOCTL_NOTIF_RECV, notice)
            except OSError:  # Sail has ended
                return
            (identity,) = struct.unpack_from("Q", notice)
            (descriptor,) = struct.unpack_from("Q", notice, 32)
            listening = socket.socket(fileno=os.dup(descriptor))
            if listening.family in (socket.AF_INET, socket.AF_INET6):
                _filter(listening, NOBODY)
                self._closed[listening.getsockname()[1]] = listening
            answer = struct.pack("QqiI", identity, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE)
            fcntl.ioctl(self._notices, SECCOMP_IOCTL_NOTIF_SEND, bytearray(answer))

    def knows(self, port: int) -> bool:
        """Whether the socket with this port is closed to everybody."""
        self._port = port
        return port in self._closed

    def serve(self) -> NoReturn:
        while True:
            client, _ = self._clients.accept()
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        sail = socket.socket()
        sail.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sail.bind(("127.0.0.1", 0))
        with self._opening:
            try:
                _filter(self._closed[self._port], only(sail.getsockname()[1]))
                sail.settimeout(ANSWER_SECONDS)
                sail.connect(("127.0.0.1", self._port))
                threading.Thread(target=_copy, args=(client, sail), daemon=True).start()
                # Once Sail has answered it has accepted the connection, which the filter concerns no more.
                first = sail.recv(PIECE)
                sail.settimeout(None)
            except OSError:
                first = b""
            finally:
                _filter(self._closed[self._port], NOBODY)
        _copy(sail, client, first)
        for side in (sail, client):
            side.close()


def _copy(source: socket.socket, target: socket.socket, first: bytes = b"") -> None:
    """Copy bytes until one side ends, and then say so to both."""
    piece = memoryview(bytearray(PIECE))
    try:
        target.sendall(first)
        while length := source.recv_into(piece):
            target.sendall(piece[:length])
    except OSError:
        pass
    for side in (source, target):
        try:
            side.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


def _say(text: str) -> None:
    print(text, flush=True)


def _listen() -> tuple[object, int]:
    """Start Sail in this process; returns it, which ends when it is forgotten, and its port."""
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    address = server.listening_address
    if address is None:
        raise OSError("Sail does not listen")
    return server, int(address[1])


def _be_sail(parent: int, to_gatekeeper: int, architecture: int, seccomp: int, listen: int) -> NoReturn:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _call(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        if os.getppid() != parent:
            os._exit(1)
        os.nice(PRIORITY)
        _call(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        program = _Program(stops(architecture, listen))
        flags = SECCOMP_FILTER_FLAG_NEW_LISTENER
        notices = _call(libc.syscall(seccomp, SECCOMP_SET_MODE_FILTER, flags, program.header), "seccomp")
        os.write(to_gatekeeper, struct.pack("ii", notices, 0))
        kept, port = _listen()
        os.write(to_gatekeeper, struct.pack("ii", 0, port))
        while kept:
            signal.pause()
    except BaseException as error:
        _say(f"failed {error}")
    os._exit(1)


def main(argument: str) -> None:
    if reason := why_unguarded():
        _say(f"failed {reason}")
        return
    architecture, clone, seccomp, listen = ARCHITECTURES[platform.machine()]
    libc = ctypes.CDLL(None, use_errno=True)
    told, to_gatekeeper = os.pipe()
    parent = os.getpid()
    # Not os.fork(): the two processes share their file descriptors.
    sail = _call(libc.syscall(clone, CLONE_FILES | signal.SIGCHLD, 0, 0, 0, 0), "clone")
    if sail == 0:
        _be_sail(parent, to_gatekeeper, architecture, seccomp, listen)
    ended = os.pidfd_open(sail)

    def hear() -> tuple[int, int]:
        ready, _, _ = select.select([told, ended, 0], [], [])
        if told not in ready:
            _end(sail)
        notices, port = struct.unpack("ii", os.read(told, 8))
        return notices, port

    notices, _ = hear()
    gatekeeper = Gatekeeper(socket.socket(fileno=int(argument)), notices)
    threading.Thread(target=gatekeeper.watch, daemon=True).start()
    _, port = hear()
    if not gatekeeper.knows(port):
        _say("failed it listens without having asked")
        _end(sail)
    threading.Thread(target=gatekeeper.serve, daemon=True).start()
    _say("ready")
    select.select([ended, 0], [], [])
    _end(sail)


def _end(sail: int) -> NoReturn:
    os.kill(sail, signal.SIGKILL)
    os.waitpid(sail, 0)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
