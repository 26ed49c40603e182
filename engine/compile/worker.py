"""The process that compiles: takes jobs from its standard input, one after the other, and answers on its output.

It has nothing of the server's: no socket, no thread, no environment with passwords in it. It ends when its input does,
which is when the server has ended, however that was. What a job may take is limited by the kernel: the time on the CPU
by RLIMIT_CPU, which ends the process, and memory by RLIMIT_AS. A job runs in a thread with a stack on which Python's
recursion ends before the memory does.

A message is its length (8 bytes, network order) and a pickle: of a job ``(function, arguments)``, of an answer
``(kind, value, retire)``. Both ends are the same program.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import platform
import queue
import resource
import struct
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO

DONE, RAISED, TOO_DEEP, TOO_LARGE, FAILED = "done", "raised", "too deep", "too large", "failed"

LENGTH = struct.Struct("!Q")

LOWEST = 19
"""The priority of what others need not wait for, as `nice` counts."""

SLICE = 100_000
"""Nanoseconds on the CPU after which another process can have it; the least that Linux takes."""

SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, which Python has no function for."""

SCHED_ATTR = struct.Struct("=IIQiIQQQ")
"""Its argument, see sched_setattr(2): size, policy, flags, nice, priority, runtime, deadline, period."""

STACK = 256 << 20
"""Bytes of the stack of the thread that compiles; only what is used of it is memory."""

RECURSION = 20_000
"""Frames of Python. Each takes up to 8 kB of the stack, where it was called by way of C."""

RETIRE = 0.5
"""The part of the memory limit from which on a process that has done its job is replaced, for what it keeps."""


def main(cpu_seconds: int, memory: int) -> None:
    """Serve until the input ends. ``cpu_seconds`` limits each job, ``memory`` (bytes) what is used above the start."""
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write between the answers
    _yield_to_others()
    import sql.jobs  # noqa: F401

    gc.collect()
    gc.freeze()
    _limit(resource.RLIMIT_CORE, 0)
    sys.setrecursionlimit(RECURSION)
    threading.stack_size(STACK)
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_work, args=(asked, answers, cpu_seconds, memory), daemon=True).start()
    while (job := read_message(jobs)) is not None:
        asked.put(job)
    os._exit(0)


def _work(asked: queue.SimpleQueue[bytes], answers: IO[bytes], cpu_seconds: int, memory: int) -> None:
    try:
        _answer(asked, answers, cpu_seconds, memory)
    except BrokenPipeError:  # the server has ended, perhaps before this process was ready
        os._exit(0)


def _answer(asked: queue.SimpleQueue[bytes], answers: IO[bytes], cpu_seconds: int, memory: int) -> None:
    begin = _memory()
    if begin is not None:
        _limit(resource.RLIMIT_AS, begin[0] + memory)
    write_message(answers, b"ready")
    while True:
        job = asked.get()
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + cpu_seconds + 1)
        kind, value = _done(job)
        now = _memory()
        retire = kind == TOO_LARGE or (begin is not None and now is not None and now[1] > begin[1] + RETIRE * memory)
        try:
            answer = pickle.dumps((kind, value, retire), pickle.HIGHEST_PROTOCOL)
        except MemoryError:
            value, retire = None, True
            answer = pickle.dumps((TOO_LARGE, None, True), pickle.HIGHEST_PROTOCOL)
        write_message(answers, answer)
        if retire:
            os._exit(0)


def _done(job: bytes) -> tuple[str, object]:
    try:
        function, arguments = pickle.loads(job)
        return DONE, function(*arguments)
    except RecursionError:
        return TOO_DEEP, None
    except MemoryError:
        return TOO_LARGE, None
    except Exception as error:
        return _described(error)


def _described(error: Exception) -> tuple[str, object]:
    """An error of the compiler's own vocabulary as it is; of any other what the log shall say."""
    if type(error).__module__.partition(".")[0] == "sql":
        return RAISED, error.with_traceback(None)
    return FAILED, "".join(traceback.format_exception(error, limit=-20))


def _yield_to_others() -> None:
    """Have the lowest priority, and be interrupted soon: who only relays goes first.

    Linux may weigh whole sessions first, of which this process has its own; and who wakes up waits for whoever is at
    work until that one's slice is over, 3 ms by default.
    """
    os.nice(LOWEST)
    with suppress(OSError):  # not every kernel weighs sessions
        Path("/proc/self/autogroup").write_text(str(LOWEST))
    call = SCHED_SETATTR.get(platform.machine()) if sys.platform == "linux" else None
    if call is not None:
        normal, flags, priority = 0, 0, 0
        attributes = SCHED_ATTR.pack(SCHED_ATTR.size, normal, flags, LOWEST, priority, SLICE, 0, 0)
        ctypes.CDLL(None).syscall(call, 0, attributes, 0)  # a kernel before 6.12 leaves the slice as it is


def _limit(what: int, value: int) -> None:
    """Set a soft limit, as far as the hard one allows."""
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _memory() -> tuple[int, int] | None:
    """The sizes of the address space and of what is in memory, in bytes; None where the kernel does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return None
    return int(pages[0]) * resource.getpagesize(), int(pages[1]) * resource.getpagesize()


def write_message(pipe: IO[bytes], content: bytes) -> None:
    """Raises OSError where nobody reads."""
    pipe.write(LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def read_message(pipe: IO[bytes]) -> bytes | None:
    """The next message; None at the end of the input."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    content = pipe.read(size)
    return content if len(content) == size else None
