"""Perl-compatible regular expressions with an end to their work: pcre2api(3).

A pattern of a job may take any time on some line of a guest's, and Python's `re` cannot be told to stop; nothing else
of the driver's would happen meanwhile. libpcre2 counts its steps. systemd brings it along, for `journalctl --grep`.
"""

import ctypes
from functools import cache

from solo5_systemd.errors import InvalidRequestError

LIBRARY = "libpcre2-8.so.0"

STEPS = 50_000
"""Of one search: about a millisecond at worst, and far more than any pattern takes that was meant to find a line."""

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t


class Pattern:
    """A compiled pattern; bytes are searched as they are.

    Args:
        text: the pattern.

    Raises:
        InvalidRequestError: it is none; the sentence says where it goes wrong.
        DependencyError: the library is missing.
    """

    def __init__(self, text: str) -> None:
        self._library = _library()
        number, offset, source = ctypes.c_int(), _SIZE(), text.encode()
        self._code = _POINTER(
            self._library.pcre2_compile_8(source, len(source), 0, ctypes.byref(number), ctypes.byref(offset), None)
        )
        if self._code.value is None:
            raise InvalidRequestError(
                f"{text!r} is no regular expression: {_words(number.value)} at character {offset.value + 1}."
            )
        self._match = _POINTER(self._library.pcre2_match_data_create_from_pattern_8(self._code, None))
        self._limits = _POINTER(self._library.pcre2_match_context_create_8(None))
        self._library.pcre2_set_match_limit_8(self._limits, STEPS)

    def found_in(self, line: bytes) -> bool:
        """Somewhere in it; a search that takes too long has found nothing."""
        found = self._library.pcre2_match_8(self._code, line, len(line), 0, 0, self._match, self._limits)
        return bool(found >= 0)

    def close(self) -> None:
        self._library.pcre2_match_context_free_8(self._limits)
        self._library.pcre2_match_data_free_8(self._match)
        self._library.pcre2_code_free_8(self._code)


def _words(number: int) -> str:
    text = ctypes.create_string_buffer(256)
    _library().pcre2_get_error_message_8(number, text, _SIZE(len(text)))
    return text.value.decode("ascii", "replace")


@cache
def _library() -> ctypes.CDLL:
    """libpcre2, with the types of what is used of it."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        from solo5_systemd.dependencies import blamed

        raise blamed(error) from error
    for name in ("pcre2_compile_8", "pcre2_match_data_create_from_pattern_8", "pcre2_match_context_create_8"):
        getattr(library, name).restype = _POINTER
    number, size = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(_SIZE)
    library.pcre2_compile_8.argtypes = [ctypes.c_char_p, _SIZE, ctypes.c_uint32, number, size, _POINTER]
    library.pcre2_match_8.argtypes = [
        _POINTER, ctypes.c_char_p, _SIZE, _SIZE, ctypes.c_uint32, _POINTER, _POINTER
    ]  # fmt: skip
    library.pcre2_match_data_create_from_pattern_8.argtypes = [_POINTER, _POINTER]
    library.pcre2_match_context_create_8.argtypes = [_POINTER]
    library.pcre2_set_match_limit_8.argtypes = [_POINTER, ctypes.c_uint32]
    library.pcre2_get_error_message_8.argtypes = [ctypes.c_int, ctypes.c_char_p, _SIZE]
    for name in ("pcre2_match_context_free_8", "pcre2_match_data_free_8", "pcre2_code_free_8"):
        getattr(library, name).argtypes, getattr(library, name).restype = [_POINTER], None
    return library
