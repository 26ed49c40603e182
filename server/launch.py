"""Starts a PostgreSQL program the way a process of ours has to run, and becomes it (exec).

Run by path, never imported: `python -I -S launch.py [options] -- program arguments`. It is a program of
its own and not a `preexec_fn`, which is unsafe in a process with threads. It needs the standard library
alone, and Linux for the options.

--parent PID      ask the kernel for SIGINT (PostgreSQL's fast shutdown) when that parent dies, so that
                  nothing stays behind when it is killed with -9. The kernel means the *thread* that
                  started us.
--user-namespace  as root: a user namespace in which root is seen as an ordinary user. PostgreSQL refuses
                  to run as root; there it sees uid 65534, while every file stays root's.
--run-as UID:GID  as root: become this user for good.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
NOBODY = 65534


def _libc_call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _enter_user_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    _libc_call("unshare", CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{NOBODY} {uid} 1")
    _write("/proc/self/gid_map", f"{NOBODY} {gid} 1")


def _become(user: str) -> None:
    uid, gid = (int(part) for part in user.split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def main(arguments: list[str]) -> None:
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    parent: int | None = None
    while options:
        option = options.pop(0)
        if option == "--parent":
            parent = int(options.pop(0))
        elif option == "--user-namespace":
            _enter_user_namespace()
        elif option == "--run-as":
            _become(options.pop(0))
        else:
            sys.exit(f"launch.py: unknown option {option}")
    if parent is not None:
        # After the change of user, which clears the setting.
        _libc_call("prctl", PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("launch.py: the parent died before the start")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
