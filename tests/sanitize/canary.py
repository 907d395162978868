"""Reads one byte after a block: must not survive under AddressSanitizer (run.sh expects it to fail)."""

import ctypes

from tests.sanitize.exact import exact

view = exact(bytes(40))
ctypes.memmove(ctypes.create_string_buffer(64), ctypes.addressof(ctypes.c_uint8.from_buffer(view)), 41)
