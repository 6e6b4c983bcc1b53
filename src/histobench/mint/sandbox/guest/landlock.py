"""Landlock: the kernel's own file, signal and socket rules for a process without privileges."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from .syscalls import PR_SET_NO_NEW_PRIVS, prctl, syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_QUERY = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV
READ = READ_FILE | READ_DIR | EXECUTE
_TCP_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
SIGNAL_SCOPE_VERSION = 6
REFER_VERSION = 2


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_version() -> int:
    """The kernel's Landlock ABI version, 0 where Landlock is absent or switched off."""
    try:
        return syscall(_CREATE_RULESET, 0, 0, _VERSION_QUERY)
    except OSError:
        return 0


def restrict_files(readable: Iterable[str], writable: Iterable[str], listable: Iterable[str] = ()) -> None:
    """Let this process read and execute beneath `readable`, do anything beneath `writable`, nothing else.

    Beneath `listable` it sees the names in folders. Paths that do not exist are skipped. From version 4 on
    TCP is cut as well, from 6 on signals and abstract sockets do not leave the process and its children.
    """
    version = landlock_version()
    everything = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    attributes = _RulesetAttributes(files=everything)
    size = 8
    if version >= 4:
        attributes.network, size = _TCP_BIND_AND_CONNECT, 16
    if version >= SIGNAL_SCOPE_VERSION:
        attributes.scoped, size = _ABSTRACT_SOCKETS_AND_SIGNALS, 24
    rules = [(path, READ) for path in readable]
    rules += [(path, READ_DIR) for path in listable]
    rules += [(path, everything & ~_IOCTL_DEV) for path in writable]
    _restrict(attributes, size, rules)


def restrict_writing(writable: Iterable[str]) -> None:
    """Open only what is beneath `writable` for writing; nothing happens where Landlock is too old."""
    if landlock_version() >= REFER_VERSION:
        rights = WRITE_FILE | _REFER
        _restrict(_RulesetAttributes(files=rights), 8, [(path, rights) for path in writable])


def _restrict(attributes: _RulesetAttributes, size: int, rules: Iterable[tuple[str, int]]) -> None:
    ruleset = syscall(_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _ON_FILES
        rule = _PathBeneath(allowed=rights, parent=descriptor)
        syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
