"""Hostile code that asks the kernel for something it must not get: each request is refused."""

from __future__ import annotations

import json
import os
import sys
import textwrap

import pytest

import histobench
from histobench.mint.sandbox import SandboxPool

PRELUDE = """
import ctypes, errno, os, platform, signal, socket, struct, subprocess, sys, time
X86 = platform.machine() == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(x86, arm, *args):
    number = x86 if X86 else arm
    args = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""

NETWORK = {
    "tcp to a service of this machine": "socket.create_connection(('127.0.0.1', H['tcp_port']), 2)",
    "tcp to the internet": "socket.create_connection(('8.8.8.8', 53), 2)",
    "tcp over ipv6": "socket.create_connection(('::1', H['tcp_port']), 2)",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
    "raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "listening for connections": "socket.create_server(('127.0.0.1', 0))",
    "a web page": "import urllib.request; urllib.request.urlopen('http://example.com', timeout=2)",
    "name resolution": "socket.getaddrinfo('example.com', 80)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)",
    "vsock to a hypervisor": "socket.socket(40, socket.SOCK_STREAM)",
    "kernel crypto socket": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "bluetooth": "socket.socket(31, socket.SOCK_RAW, 1)",
    "unix socket in the file system": "socket.socket(socket.AF_UNIX).connect(H['unix_path'])",
    "abstract unix socket": "socket.socket(socket.AF_UNIX).connect('\\0' + H['abstract_name'])",
    "datagram past a socket pair": (
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', H['unix_path'])"
    ),
}
FILES = {
    "a secret that every user may read": "open(H['secret_file']).read()",
    "the password file's shadow": "open('/etc/shadow').read()",
    "the source tree": "open(H['source']).read()",
    "the host's home": "os.listdir(H['home'])",
    "the machine's logs": "os.listdir('/var/log')",
    "a symbolic link to a secret": "os.symlink(H['secret_file'], 'link'); open('link').read()",
    "a hard link to a secret": "os.link(H['secret_file'], 'hard'); open('hard').read()",
    "a secret through the root of process 1": "open('/proc/1/root' + H['secret_file']).read()",
    "a secret by climbing": "open('../' * 30 + H['secret_file'][1:]).read()",
    "a world-writable file": "open(H['writable_file'], 'w').write('changed')",
    "appending to it": "open(H['writable_file'], 'a').write('changed')",
    "truncating it": "os.truncate(H['writable_file'], 0)",
    "changing its mode": "os.chmod(H['writable_file'], 0)",
    "removing it": "os.remove(H['writable_file'])",
    "a file in a world-writable folder": "open(H['open_folder'] + '/new', 'w')",
    "a folder in a world-writable folder": "os.mkdir(H['open_folder'] + '/new')",
    "moving a file in from outside": "os.rename(H['open_folder'] + '/kept', 'mine')",
    "moving a file out": "open('x', 'w').close(); os.rename('x', H['open_folder'] + '/x')",
    "the system's programs": "open('/usr/bin/new', 'w')",
    "the interpreter's library": "open(os.__file__, 'a')",
    "installed packages": "open(H['packages'] + '/evil.pth', 'w')",
    "system settings": "open('/etc/passwd', 'a')",
    "the root folder": "open('/new', 'w')",
    "kernel settings": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x')",
    "the kernel's emergency switch": "open('/proc/sysrq-trigger', 'w').write('b')",
    "a disk": "open(H['disk'], 'rb').read(1)",
    "physical memory": "open('/dev/mem', 'rb').read(1)",
    "a new device": "os.mknod('disk', 0o60666, os.makedev(254, 0)); open('disk', 'rb').read(1)",
    "mounting": "call(165, 40, b'tmpfs', b'/usr', b'tmpfs', 0, None)",
    "unmounting": "call(166, 39, b'/tmp', 0)",
    "changing the root": "os.chroot('/tmp')",
    "opening by handle": "call(304, 265, -100, b'\\0' * 64, 0)",
    "more disk than allowed": (
        "[open(f'big{i}', 'wb').write(b'x' * (4 << 20)) for i in range(12)] if H['own_tmpfs'] else "
        "open('big', 'wb').write(b'x' * (40 << 20))"
    ),
    "one file longer than allowed": "f = open('long', 'wb'); f.seek(17 << 20); f.write(b'x'); f.flush()",
}
KERNEL = {
    "a new user namespace": "call(272, 97, 0x10000000)",
    "a clone into new namespaces": "call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)",
    "clone3": "call(435, 435, 0, 0)",
    "entering a namespace": "call(308, 268, os.open('/proc/self/ns/net', os.O_RDONLY), 0)",
    "becoming root": "os.setuid(0)",
    "becoming another group": "os.setgid(0)",
    "tracing the parent": "call(101, 117, 16, os.getppid() or H['host_pid'], 0, 0)",
    "tracing the host": "call(101, 117, 16, H['host_pid'], 0, 0)",
    "reading the host's memory": "call(310, 270, H['host_pid'], 0, 0, 0, 0, 0)",
    "the host's memory as a file": "open(f\"/proc/{H['host_pid']}/mem\", 'rb').read(1)",
    "the host's environment": "open(f\"/proc/{H['host_pid']}/environ\", 'rb').read()",
    "the host's command line": "open(f\"/proc/{H['host_pid']}/cmdline\", 'rb').read()",
    "a signal to the host": "os.kill(H['host_pid'], 9)",
    "a signal to the zygote": "os.kill(H['zygote_pid'], 9)",
    "limits of the host": "import resource; resource.prlimit(H['host_pid'], resource.RLIMIT_NOFILE, (1, 1))",
    "higher limits": "call(302, 261, 0, 9, struct.pack('QQ', 1 << 62, 1 << 62), None)",
    "real-time priority": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))",
    "a better priority": "os.setpriority(os.PRIO_PROCESS, 0, -10)",
    "io_uring": "call(425, 425, 8, b'\\0' * 120)",
    "bpf": "call(321, 280, 0, b'\\0' * 64, 64)",
    "performance counters": "call(298, 241, b'\\0' * 112, 0, -1, -1, 0)",
    "userfaultfd": "call(323, 282, 0)",
    "the keyring": "call(250, 219, 0, -3, 0)",
    "a kernel module": "call(175, 105, b'x', 1, b'')",
    "another kernel": "call(246, 104, 0, 0, 0, 0)",
    "a reboot": "call(169, 142, 0xFEE1DEAD, 672274793, 0x1234567, 0)",
    "the clock": "time.clock_settime(time.CLOCK_REALTIME, 0)",
    "the host name": "socket.sethostname('owned')",
    "swap": "call(168, 225, b'/swap')",
    "the kernel log": "call(103, 116, 3, ctypes.create_string_buffer(99), 99)",
    "a call newer than the filter": "call(470, 470, 0, 0)",
    "terminal injection": "import fcntl; fcntl.ioctl(0, 0x5412, b'x')",
    "another process's descriptor": "call(438, 438, 3, 0, 0)",
    "a watch on files of all episodes": "call(254, 27, libc.inotify_init1(0), b'/usr', 0xFFF)",
    "a key": "call(248, 217, b'user', b'x', b'y', 1, -3)",
    "a process handle on the host": "signal.pidfd_send_signal(os.pidfd_open(H['host_pid']), 9)",
    "an asynchronous context": "call(206, 0, 128, ctypes.byref(ctypes.c_long(0)))",
    "a sibling instead of a child": "call(56, 220, 0x8000 | 17, 0, 0, 0, 0)",
    "a thread with descriptors of its own": "call(56, 220, 0x10000 | 0x800 | 0x100, 0, 0, 0, 0)",
    "giving orphans away": "call(157, 167, 36, 0, 0, 0, 0)",
    "hiding from the watch": "call(157, 167, 4, 0, 0, 0, 0)",
    "outliving the zygote": "call(157, 167, 1, 0, 0, 0, 0)",
    "rules of its own": "call(444, 444, struct.pack('Q', 1), 8, 0)",
    "survival when memory runs out": "open('/proc/self/oom_score_adj', 'w').write('0')",
}
MEMORY = {
    "a file in memory": "os.memfd_create('x')",
    "a secret file in memory": "call(447, 447, 0)",
    "System V shared memory": "call(29, 194, 0, 1 << 20, 0o1600)",
    "System V semaphores": "call(64, 190, 0, 32000, 0o1600)",
    "System V messages": "call(68, 186, 0, 0o1600)",
    "POSIX messages": "call(240, 180, b'x', 0o102, 0o600, None)",
    "shared memory without a file": "import mmap; mmap.mmap(-1, 1 << 20)",
    "shared memory of a device": "import mmap; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20)",
    "huge pages": "import mmap; mmap.mmap(-1, 2 << 20, flags=0x40000 | 0x22)",
    "pages lent to a pipe": "call(278, 75, os.pipe()[1], 0, 0, 0)",
    "locking memory": "call(149, 228, ctypes.create_string_buffer(8 << 20), 8 << 20)",
    "more in shared memory than allowed": "open('/dev/shm/x', 'wb').write(b'x' * (17 << 20))",
}
REQUESTS = {**NETWORK, **FILES, **KERNEL, **MEMORY}


@pytest.mark.slow
@pytest.mark.parametrize("what", REQUESTS)
def test_request_is_refused(bare_pool: SandboxPool, treasure, what: str) -> None:
    facts = {
        "tcp_port": treasure.tcp_port,
        "unix_path": treasure.unix_path,
        "abstract_name": treasure.abstract_name,
        "secret_file": str(treasure.secret_file),
        "writable_file": str(treasure.writable_file),
        "open_folder": str(treasure.open_folder),
        "source": histobench.__file__,
        "home": "/home" if os.getuid() else "/root/.config",
        "packages": os.path.dirname(os.path.dirname(pytest.__file__)),
        "disk": f"/dev/{next(iter(sorted(os.listdir('/sys/block'))), 'sda')}",
        "host_pid": os.getpid(),
        "zygote_pid": bare_pool.pid,
        "own_tmpfs": bare_pool.backend == "bubblewrap",
    }
    attempt = textwrap.indent(REQUESTS[what], "    ")
    code = (
        f"try:\n{attempt}\nexcept OSError as error:\n    print('REFUSED', error)\nelse:\n    print('ESCAPED')"
    )
    with bare_pool.episode() as episode:
        assert episode.run_cell(f"{PRELUDE}\nimport json\nH = json.loads({json.dumps(facts)!r})").kind == "ok"
        result = episode.run_cell(code, timeout=60)
        assert result.text.startswith("REFUSED"), result
        assert episode.run_cell("print(len(H))").text == f"{len(facts)}\n"
    assert treasure.untouched()
    with bare_pool.episode() as after:
        assert after.run_cell("print(6 * 7)").text == "42\n"


def test_only_the_wanted_environment_is_there(bare_pool: SandboxPool, treasure) -> None:
    with bare_pool.episode() as episode:
        text = episode.run_cell("import os; print(dict(os.environ))").text
        assert "the-secret" not in text
        assert set(eval(text)) <= {
            *(
                "PATH",
                "HOME",
                "TMPDIR",
                "IPYTHONDIR",
                "MPLCONFIGDIR",
                "MPLBACKEND",
                "LANG",
                "SHELL",
                "USER",
                "PWD",
            ),
            *("PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"),
            *("PIP_NO_INDEX", "PIP_NO_INPUT", "PIP_CONFIG_FILE", "PIP_DISABLE_PIP_VERSION_CHECK"),
            *("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
        }


def test_no_privilege_is_left(bare_pool: SandboxPool) -> None:
    with bare_pool.episode() as episode:
        text = episode.run_cell(
            "import os; print(os.getresuid(), os.getgroups(), open('/proc/self/status').read())"
        ).text
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert "(0," not in text.splitlines()[0]
    # Under Landlock one may remain, to read an interpreter under a folder that only root can enter.
    allowed = 0 if bare_pool.backend == "bubblewrap" else 1 << 2
    for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb", "CapInh"):
        if os.getuid() == 0 or name != "CapBnd":
            assert int(status[name], 16) & ~allowed == 0, name


def test_the_host_package_cannot_be_imported(bare_pool: SandboxPool) -> None:
    if "site-packages" in histobench.__file__:
        pytest.skip("installed among the packages: readable, though it holds no secret")
    with bare_pool.episode() as episode:
        assert "ModuleNotFoundError" in episode.run_cell("import histobench.mint.tools").text


def test_only_the_episodes_own_socket_is_inherited(bare_pool: SandboxPool) -> None:
    with bare_pool.episode() as episode:
        text = episode.run_cell("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:4])").text
        listed = episode.run_cell(
            "print([fd for fd in range(4, 256) if os.path.exists(f'/proc/self/fd/{fd}') and "
            "not os.readlink(f'/proc/self/fd/{fd}').startswith(('/proc', '/dev/null'))])"
        ).text
    assert text == "[0, 1, 2, 3]\n"
    assert listed == "[]\n"


def test_a_set_uid_program_gains_nothing(bare_pool: SandboxPool) -> None:
    with bare_pool.episode() as episode:
        text = episode.run_cell(
            "import subprocess; print(subprocess.run(['su', '-c', 'id'], capture_output=True, text=True))"
        ).text
    assert "uid=0" not in text


@pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="a second set of system calls exists on x86-64 only"
)
@pytest.mark.parametrize(
    "code",
    [
        # mov eax, 20 (getpid); int 0x80; ret - the 32-bit door
        "m = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)\n"
        "m.write(bytes.fromhex('b814000000cd80c3'))\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nprint(f())",
        # the x32 door
        "print(ctypes.CDLL(None).syscall(0x40000000 + 39))",
    ],
)
def test_the_second_door_to_the_kernel_kills(bare_pool: SandboxPool, code: str) -> None:
    with bare_pool.episode() as episode:
        assert episode.run_cell(f"import ctypes, mmap\n{code}").kind == "killed"
        assert episode.run_cell("print('next')").text == "next\n"


def test_python_of_the_sandbox_is_this_one(bare_pool: SandboxPool) -> None:
    with bare_pool.episode() as episode:
        assert episode.run_cell("import sys; print(sys.version)").text == f"{sys.version}\n"
        assert episode.run_cell("import numpy; print(numpy.arange(3).sum())").text == "3\n"
