"""Syncs one file at a time by the kernel's asynchronous IO (Linux 4.18), without a thread. The end of a sync makes a
descriptor readable. See io_submit(2)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

# io_setup, io_destroy, io_submit, io_getevents; the C library has no functions for them.
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
_FDSYNC = 3  # IOCB_CMD_FDSYNC
_SIGNAL = 1  # IOCB_FLAG_RESFD: signal an eventfd when the request ends


class _Request(ctypes.Structure):
    """`struct iocb` on a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("file", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class Aio:
    """Syncs one file at a time, as fdatasync(2) does. `ends`: a descriptor that is readable once a sync has ended."""

    def __init__(self) -> None:
        """Raises OSError if the system does not support asynchronous syncs."""
        calls = _CALLS.get(platform.machine()) if sys.platform == "linux" and sys.maxsize > 2**32 else None
        if calls is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        setup, *others = calls
        self._destroy, self._submit, self._get_events = map(ctypes.c_long, others)
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        if self._syscall(ctypes.c_long(setup), ctypes.c_long(1), ctypes.byref(context)):
            raise _last_error()
        self._context = context
        self.ends = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The kernel reads and writes these while a sync runs, so they must live as long as this object.
        self._event = _Event()
        self._request = _Request(opcode=_FDSYNC, flags=_SIGNAL, eventfd=self.ends)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._event_at = ctypes.byref(self._event)
        self._zero, self._one, self._no_wait = ctypes.c_long(0), ctypes.c_long(1), (ctypes.c_long * 2)(0, 0)

    def start(self, file: int) -> None:
        """Begin to sync an open file. Raises OSError if the kernel refuses; then no sync has begun."""
        self._request.file = file
        if (accepted := self._syscall(self._submit, self._context, self._one, self._requests)) != 1:
            raise _last_error() if accepted < 0 else OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def take_result(self) -> bool:
        """Whether the sync has ended. Raises OSError if it failed, or if its result cannot be known."""
        try:
            os.eventfd_read(self.ends)
        except BlockingIOError:
            return False
        ended = self._syscall(self._get_events, self._context, self._zero, self._one, self._event_at, self._no_wait)
        if ended < 0:
            raise _last_error()
        result = self._event.result if ended == 1 else -errno.EIO
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        return True

    def close(self) -> None:
        """Wait for a running sync, then release everything."""
        self._syscall(self._destroy, self._context)
        os.close(self.ends)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
