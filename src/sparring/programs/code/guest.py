"""What is inside the sandbox beside a program: runs it, and writes what it leaves as text.

This file is no part of the process of a run. ``component.py`` builds it, CPython and the modules imported
here into one WebAssembly component, of which every program gets a fresh copy. A program may change anything
in its copy, this code included. So nothing that stands here protects anything: it makes a program's answer
readable, and the host knows only that the program gave it.
"""

import abc
import array
import ast
import base64
import bisect
import calendar
import cmath
import collections
import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import heapq
import io
import itertools
import json
import math
import numbers
import operator
import pprint
import random
import re
import statistics
import string
import struct
import sys
import textwrap
import types
import typing
import warnings

MODULES = (
    *(abc, array, base64, bisect, calendar, cmath, collections, contextlib, copy, dataclasses, datetime),
    *(decimal, enum, fractions, functools, hashlib, heapq, itertools, json, math, numbers, operator, pprint),
    *(random, re, statistics, string, struct, textwrap, types, typing),
)
"""What a program can import, beside the modules that are part of the interpreter itself."""
NO_FILE = "\ud800"
"""The name of a program's file. CPython opens a file whose syntax is wrong, which would end the program at
once; this cannot be the name of a file, so it does not try."""
PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, set, frozenset, dict)
"""The types of values that leave the sandbox."""
LONGEST_ERROR = 500


class TooMuch(BaseException):
    """More was printed, or is in a value, than the limit allows."""


class Printed(io.TextIOBase):
    """The standard output of a program, which keeps a number of characters."""

    def __init__(self, room: int) -> None:
        self.room, self.parts, self.is_full = room, list[str](), False

    def write(self, text: str) -> int:
        """Keep a text; raise TooMuch if there is no room for it."""
        self.room -= len(text)
        if self.room < 0:
            self.is_full = True
            raise TooMuch
        self.parts.append(text)
        return len(text)


def literal(value: object, room: int) -> str:
    """Return a value as a literal of Python, of at most ``room`` characters, for ``ast.literal_eval``.

    Entries of sets and dictionaries are in the order of their texts, so equal values have equal texts, but
    for numbers of different types. The types are exact: an object whose class is a program's own is refused,
    so no method of its own is called.

    Raises:
        TypeError: it is not a plain value.
        TooMuch: it is longer.
    """
    text = _literal(value, [room])
    if len(text) > room:
        raise TooMuch
    return text


def _literal(value: object, room: list[int]) -> str:
    room[0] -= 1
    if room[0] < 0:
        raise TooMuch
    kind = type(value)
    if not any(kind is plain for plain in PLAIN):  # not ==, which a metaclass may define
        raise TypeError("the value is not a plain one")
    match value:
        case float() if value != value:
            raise TypeError("the value is not a number")
        case float():
            return repr(value).replace("inf", "1e999")
        case list():
            return f"[{', '.join([_literal(one, room) for one in value])}]"
        case tuple():
            inner = ", ".join([_literal(one, room) for one in value])
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        case set() | frozenset():
            return f"{{{', '.join(sorted([_literal(one, room) for one in value]))}}}" if value else "set()"
        case dict():
            pairs = [f"{_literal(key, room)}: {_literal(one, room)}" for key, one in value.items()]
            return f"{{{', '.join(sorted(pairs))}}}"
        case _:
            return repr(value)


def _tuple_of(text: str) -> tuple[object, ...]:
    """Return arguments as they would stand in a call, all of them literals."""
    value = ast.literal_eval(f"({text.strip().rstrip(',')},)" if text.strip() else "()")
    assert type(value) is tuple
    return value


def _run(source: str, call: str, arguments: str | None, room: int) -> str:
    # The arguments first: a program that is not there yet cannot be told from another by them.
    given = None if arguments is None else _tuple_of(arguments)
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    exec(compile(source, NO_FILE, "exec", dont_inherit=True), program.__dict__)
    code = compile(call.strip() or "None", NO_FILE, "eval", dont_inherit=True)
    value = eval(code, program.__dict__)
    return literal(value if given is None else value(*given), room)


def _error(error: BaseException) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {said}"[:LONGEST_ERROR]


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _without_files() -> None:
    """Look for no other module: there are no files, and asking for one would end the program at once."""
    sys.path.clear()
    sys.path_importer_cache.clear()
    sys.meta_path = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "PathFinder"]


class WitWorld:
    """The component's only interface."""

    def run(self, source: str, call: str, arguments: str | None, room: int) -> tuple[str, str, str]:
        """Run a program; return how it ended, its value or error, and what it printed."""
        _without_files()
        random.seed(0)
        warnings.simplefilter("ignore")  # they would be shown with lines of a file
        printed = Printed(room)
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), printed, printed
        try:
            ending, text = "value", _run(source, call, arguments, room)
        except TooMuch:
            ending, text = "output", ""
        except MemoryError:
            ending, text = "memory", ""
        except BaseException as error:  # noqa: BLE001 - the program raises what it likes
            try:
                ending, text = "error", _error(error)
            except BaseException:  # noqa: BLE001 - its error's own methods raise what they like
                ending, text = "error", "Exception"
        return "output" if printed.is_full else ending, _sendable(text), _sendable("".join(printed.parts))

    def same(self, first: str, second: str) -> bool:
        """Whether two texts are literals of equal values."""
        warnings.simplefilter("ignore")  # as of a backslash before a d, which Python reads all the same
        try:
            return bool(ast.literal_eval(first.strip()) == ast.literal_eval(second.strip()))
        except Exception:  # noqa: BLE001 - the text is a model's
            return False
