"""Confine the current process, for good, before it runs model-written code.

By Landlock, seccomp, dropped capabilities and rlimits.

What the kernel then refuses: every write to the file system, reads outside the Python installation and the system's
libraries, new processes, programs, sockets, signals, tracing, and more memory, CPU time or output than allowed. It
needs no privilege and no other program, only a kernel with Landlock (5.13 or later) on x86-64 or arm64.

    python -c "from evaluators.confine import landlock_abi; print(landlock_abi())"
"""

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable, Mapping
from errno import ENOSYS, EPERM

_libc = ctypes.CDLL(None, use_errno=True)

# include/uapi/linux/landlock.h: the syscalls have the same numbers everywhere.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
ACCESS_READ = 0b1100  # READ_FILE, READ_DIR
ACCESS_READ_WRITE_FILE = 0b0110
# How many access rights an ABI version knows; all are handled, so all that no rule grants are refused.
ACCESS_BITS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}
ACCESS_BITS_NEWEST = 16

PR_SET_NO_NEW_PRIVS, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECCOMP = 38, 23, 24, 22
SECCOMP_MODE_FILTER = 2
RET_ALLOW, RET_KILL, RET_ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
CLONE_THREAD = 0x10000

# Syscalls refused, by machine. Landlock covers opening, making and removing files; these are the other ways out:
# processes, programs and signals; sockets and io_uring; tracing and other processes' limits; file changes that Landlock
# does not see on every kernel (truncate, modes, owners, times, attributes); memory that outlives or escapes the limits.
REFUSED = {
    "x86_64": (
        *(57, 58, 59, 322, 62, 200, 234, 129, 297, 424, 434, 438),  # fork vfork execve* *kill *sigqueueinfo pidfd_*
        *(41, 42, 49, 50, 425, 426, 427),  # socket connect bind listen io_uring_*
        *(101, 310, 311, 312, 302, 203, 141, 251),  # ptrace process_vm_* kcmp prlimit64 sched_setaffinity *prio*
        *(272, 308, 304, 298, 321, 323, 248, 249, 250),  # unshare setns open_by_handle perf bpf userfaultfd keys
        *(76, 90, 91, 268, 452, 92, 93, 94, 260, 132, 235, 261, 280),  # truncate *chmod* *chown* *utime*
        *(188, 189, 190, 197, 198, 199, 463, 466, 469),  # *setxattr* *removexattr* file_setattr
        *(29, 64, 68, 240, 319, 447),  # shmget semget msgget mq_open memfd_*
    ),
    "aarch64": (
        *(221, 281, 129, 130, 131, 138, 240, 424, 434, 438),
        *(198, 203, 200, 201, 425, 426, 427),
        *(117, 270, 271, 272, 261, 122, 140, 30),
        *(97, 268, 265, 241, 280, 282, 217, 218, 219),
        *(45, 52, 53, 452, 54, 55, 88),
        *(5, 6, 7, 14, 15, 16, 463, 466, 469),
        *(194, 190, 186, 180, 279, 447),
    ),
}
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_SYSCALL_BIT = 0x40000000


class ConfinementError(RuntimeError):
    """The kernel did not take a restriction."""


def landlock_abi() -> int:
    """Landlock's ABI version in this kernel, 0 where it has none or is switched off."""
    return max(0, int(_libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def supported() -> bool:
    """Whether `confine` can work here at all."""
    return sys.platform == "linux" and platform.machine() in REFUSED and landlock_abi() > 0


def limit(limits: Mapping[str, float]) -> None:
    """Cap CPU time (`cpu_s`), memory (`memory_mib`), bytes per file (`output_mib`), open files and core dumps."""
    cpu_s, mib = int(limits["cpu_s"]), 1 << 20
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    for kind, value in (
        (resource.RLIMIT_AS, int(limits["memory_mib"]) * mib),
        (resource.RLIMIT_FSIZE, int(limits["output_mib"]) * mib),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def confine(readable: Iterable[str]) -> None:
    """Give up everything but reading beneath `readable`; raises ConfinementError."""
    drop_capabilities()
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    restrict_files(readable)
    filter_syscalls()


def drop_capabilities() -> None:
    """Without them, root is an ordinary user that happens to own files."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to a user who has none anyway
    header = struct.pack("Ii", 0x20080522, 0)
    capset = 126 if platform.machine() == "x86_64" else 91
    _check(_libc.syscall(capset, header, bytes(24)), "capset")


def restrict_files(readable: Iterable[str]) -> None:
    """Landlock: read beneath these paths, write to /dev/null, nothing else."""
    handled = (1 << ACCESS_BITS_BY_ABI.get(landlock_abi(), ACCESS_BITS_NEWEST)) - 1
    attribute = struct.pack("Q", handled)
    ruleset = _check(
        _libc.syscall(LANDLOCK_CREATE_RULESET, attribute, ctypes.c_size_t(len(attribute)), 0), "landlock ruleset"
    )
    for path, access in [*((path, ACCESS_READ) for path in readable), ("/dev/null", ACCESS_READ_WRITE_FILE)]:
        _allow_beneath(ruleset, path, access)
    _check(_libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock restrict")
    os.close(ruleset)


def _allow_beneath(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        access &= ~0b1000  # READ_DIR makes sense for folders only
    rule = struct.pack("=Qi", access, descriptor)
    _check(_libc.syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0), f"landlock rule for {path}")
    os.close(descriptor)


def filter_syscalls() -> None:
    """Seccomp: refuse the syscalls above, and every clone that is not a thread."""
    program = b"".join(_filter(platform.machine()))
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, fprog, 0, 0), "seccomp")


def _filter(machine: str) -> list[bytes]:
    def op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    refuse = op(RETURN, RET_ERRNO | EPERM)
    program = [op(LOAD, 4), op(JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0), op(RETURN, RET_KILL), op(LOAD, 0)]
    if machine == "x86_64":
        program += [op(JUMP_GREATER_EQUAL, X32_SYSCALL_BIT, 0, 1), refuse]
    for number in REFUSED[machine]:
        program += [op(JUMP_EQUAL, number, 0, 1), refuse]
    # clone3 hides its flags from the filter; "not implemented" makes the C library fall back to clone.
    program += [op(JUMP_EQUAL, CLONE3, 0, 1), op(RETURN, RET_ERRNO | ENOSYS)]
    program += [op(JUMP_EQUAL, CLONE[machine], 0, 3), op(LOAD, 16), op(JUMP_SET, CLONE_THREAD, 1, 0), refuse]
    return [*program, op(RETURN, RET_ALLOW)]


def _check(result: int, what: str) -> int:
    if result < 0:
        raise ConfinementError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result
