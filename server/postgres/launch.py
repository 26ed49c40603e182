"""Starts a PostgreSQL program the way a process of ours has to run, and becomes it (exec).

Run by path: `python -I -S launch.py [options] -- program arguments`. It is a program of
its own and not a `preexec_fn`, which is unsafe in a process with threads. It needs the standard library
alone, and Linux for all options but --user.

--parent PID     ask the kernel for SIGINT (PostgreSQL's fast shutdown) when that parent dies, so that
                 nothing stays behind when it is killed with -9. The kernel means the *thread* that
                 started us.
--user UID:GID   as root: become this user for good, in no other group, without capabilities and without a
                 way to get any.
--reach PATH     with --user, any number of times: a directory of the user's that he must get to. Where a
                 directory above one of them turns him away, the program gets a mount namespace in which an
                 empty directory stands in that one's place, with nothing in it but the way to these paths.
                 A path that is not the user's is left out: he may have put a link there.
--shared PATH    the same for a directory of somebody else's.

What the system does not permit is said on stderr, with exit status 77.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
REFUSED = 77  # EX_NOPERM
PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
CAPABILITIES = 64  # more than any kernel has
CAPABILITY_VERSION_3 = 0x20080522
CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19


def _refusal(reason: str) -> SystemExit:
    print(reason, file=sys.stderr)
    return SystemExit(REFUSED)


def _libc_call(name: str, *arguments: object) -> None:
    if getattr(LIBC, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _libc_call("mount", *texts[:3], ctypes.c_ulong(flags), texts[3])


def _above(path: str) -> list[str]:
    """The directories above an absolute path, from the top.

    >>> _above("/var/lib/headwater")
    ['/', '/var', '/var/lib']
    """
    parent = os.path.dirname(path)
    return [] if parent == path else [*_above(parent), parent]


def _closed_above(path: str, uid: int, gid: int) -> list[str]:
    """The topmost directory above `path` that turns this user away, if there is one."""
    for directory in _above(path):
        status = os.stat(directory)
        needed = 0o100 if status.st_uid == uid else 0o010 if status.st_gid == gid else 0o001
        if not status.st_mode & needed:
            return [os.path.realpath(directory)]
    return []


def _open_the_way(paths: list[str], shared: list[str], uid: int, gid: int) -> None:
    """Make all these reachable for this user, as they are named and as they really are (links may lead to them)."""
    places = sorted({place for path in (*paths, *shared) for place in (path, os.path.realpath(path))}, key=len)
    closed = sorted({directory for place in places for directory in _closed_above(place, uid, gid)})
    if not closed:
        return
    try:
        _mount_behind(closed, places, {os.path.realpath(path) for path in shared} | set(shared), uid)
    except OSError as error:
        raise _refusal(
            f'user id {uid} may not pass "{closed[0]}", and this system does not permit a mount namespace '
            f"to get around it ({error.strerror})"
        ) from None


def _mount_behind(closed: list[str], places: list[str], any_owner: set[str], uid: int) -> None:
    """Cover the closed directories, in a mount namespace of our own, by open ones in which the places are mounted.

    Only what belongs to the user is, and what is in `any_owner`. Raises OSError.
    """
    _libc_call("unshare", CLONE_NEWNS)
    _mount(None, "/", None, MS_REC | MS_SLAVE)  # what is mounted later is seen here, but not the reverse
    handles = {place: os.open(place, os.O_PATH) for place in places}
    for directory in closed:
        if not _is_below(directory, closed):
            _mount("headwater", directory, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0711")
    for place, handle in handles.items():
        allowed = place in any_owner or os.fstat(handle).st_uid == uid
        if allowed and not _is(place, handle) and _is_below(os.path.realpath(place), closed):
            _make_directory(place)
            _mount(f"/proc/self/fd/{handle}", place, None, MS_BIND | MS_REC)


def _is(place: str, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(place), os.fstat(handle))
    except FileNotFoundError:
        return False


def _is_below(path: str, directories: list[str]) -> bool:
    return any(directory in directories for directory in _above(path))


def _make_directory(path: str) -> None:
    """An empty directory to mount on, and those above it that are not there."""
    before = os.umask(0)
    os.makedirs(path, mode=0o711, exist_ok=True)
    os.umask(before)


def _become(uid: int, gid: int) -> None:
    """This user for good: setuid takes the capabilities, and nothing that is executed gives any back."""
    try:
        if sys.platform == "linux":
            _drop_bounding_set()
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        if sys.platform == "linux":
            _libc_call("capset", _words(CAPABILITY_VERSION_3, 0), _words(*[0] * 6))
            _libc_call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    except OSError as error:
        raise _refusal(f"root may not become user id {uid} here ({error.strerror})") from None


def _drop_bounding_set() -> None:
    try:
        for capability in range(CAPABILITIES):
            _libc_call("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
    except OSError:
        # Past the last one (EINVAL), or not permitted (EPERM): then no_new_privs makes the rest of no use.
        return


def _words(*values: int) -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * len(values))(*values)


def main(arguments: list[str]) -> None:
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1 :]
    parent: int | None = None
    user: tuple[int, int] | None = None
    reach: list[str] = []
    shared: list[str] = []
    while options:
        option = options.pop(0)
        if option == "--parent":
            parent = int(options.pop(0))
        elif option == "--user":
            uid, gid = (int(part) for part in options.pop(0).split(":"))
            user = uid, gid
        elif option == "--reach":
            reach.append(options.pop(0))
        elif option == "--shared":
            shared.append(options.pop(0))
        else:
            sys.exit(f"launch.py: unknown option {option}")
    if user is not None:
        _open_the_way(reach, shared, *user)
        _become(*user)
    if parent is not None:
        # After the change of user, which clears the setting.
        _libc_call("prctl", PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("launch.py: the parent died before the start")
    try:
        os.execv(command[0], command)
    except PermissionError:
        raise _refusal(f'user id {os.geteuid()} may not execute "{command[0]}"') from None


if __name__ == "__main__":
    main(sys.argv[1:])
