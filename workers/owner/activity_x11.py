"""Print the milliseconds since keyboard or mouse of the X11 display DISPLAY were last used.

A separate program, run by its path: `man 3 Xss`, XScreenSaverQueryInfo. Exit code 1: there is no display.
"""

import ctypes
import sys


class _Info(ctypes.Structure):
    _fields_ = (
        ("window", ctypes.c_ulong),
        ("state", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("til_or_since", ctypes.c_ulong),
        ("idle", ctypes.c_ulong),
        ("event_mask", ctypes.c_ulong),
    )


def main() -> int:
    """Print the idle time and return the exit code."""
    try:
        x11, xss = ctypes.CDLL("libX11.so.6"), ctypes.CDLL("libXss.so.1")
    except OSError:
        return 1
    x11.XOpenDisplay.restype = x11.XDefaultRootWindow.restype = ctypes.c_void_p
    xss.XScreenSaverAllocInfo.restype = ctypes.POINTER(_Info)
    display = x11.XOpenDisplay(None)
    if not display:
        return 1
    root = x11.XDefaultRootWindow(ctypes.c_void_p(display))
    info = xss.XScreenSaverAllocInfo()
    if not xss.XScreenSaverQueryInfo(ctypes.c_void_p(display), ctypes.c_ulong(root), info):
        return 1
    print(info.contents.idle)
    return 0


if __name__ == "__main__":
    sys.exit(main())
