"""What is inside the sandbox beside a program: runs it, and writes what it leaves as text.

This file is no part of the process of a run. ``component.py`` builds it, CPython and the modules imported
here into one WebAssembly component, of which every program gets a fresh copy. A program may change anything
in its copy, this code included. So nothing that stands here protects anything: it makes a program's answer
readable, and the host knows only that the program gave it.
"""

import __future__

import abc
import array
import ast
import base64
import bisect
import calendar
import cmath
import codecs
import collections
import contextlib
import contextvars
import copy
import csv
import dataclasses
import datetime
import decimal
import difflib
import enum
import fractions
import functools
import graphlib
import hashlib
import heapq
import html
import importlib
import inspect
import io
import itertools
import json
import logging
import math
import numbers
import operator
import pprint
import queue
import random
import re
import statistics
import string
import struct
import sys
import textwrap
import threading
import timeit
import traceback
import types
import typing
import unittest
import urllib.parse
import warnings
from typing import Any

HIDDEN = ("_pylong", "_strptime")
"""The interpreter itself loads these, for numbers of many digits and for dates."""
ENCODINGS = (
    *("ascii", "cp1252", "hex_codec", "idna", "latin_1", "punycode", "raw_unicode_escape", "rot_13"),
    *("unicode_escape", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "utf_8_sig"),
)
MODULES = (
    *(__future__, abc, array, base64, bisect, calendar, cmath, codecs, collections, contextlib, contextvars),
    *(copy, csv, dataclasses, datetime, decimal, difflib, enum, fractions, functools, graphlib, hashlib),
    *(heapq, html, inspect, itertools, json, logging, math, numbers, operator, pprint, queue, random, re),
    *(
        statistics,
        string,
        struct,
        textwrap,
        threading,
        timeit,
        traceback,
        types,
        typing,
        unittest,
        urllib.parse,
    ),
    *(importlib.import_module(name) for name in (*HIDDEN, *(f"encodings.{one}" for one in ENCODINGS))),
)
"""What a program can import, beside the modules that are part of the interpreter itself: there are no files
from which others could be read."""
NO_FILE = "\ud800"
"""The name of a program's file. CPython opens a file whose syntax is wrong, which would end the program at
once; this cannot be the name of a file, so it does not try."""
ITERABLE: tuple[type, ...] = (list, tuple, set, frozenset, type({}.keys()), type({}.items()))
NUMBERS = (float, decimal.Decimal, fractions.Fraction)
PLAIN = (type(None), bool, int, str, bytes, dict, *NUMBERS, *ITERABLE)
"""The types of values that leave the sandbox, of a subclass as its base."""
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
    for numbers of different types. What is equal to a plain value in Python is written as that: a Counter as
    a dictionary, a named tuple as a tuple, ``Fraction(1, 2)`` as 0.5. It is read by the methods of its base,
    so no method of a program's own class is called.

    Raises:
        TypeError: it is not a plain value.
        TooMuch: it is longer.
    """
    text = _literal(value, [room])
    if len(text) > room:
        raise TooMuch
    return text


def _literal(value: Any, room: list[int]) -> str:
    room[0] -= 1
    if room[0] < 0:
        raise TooMuch
    kind = _kind(value)
    if kind in (decimal.Decimal, fractions.Fraction):
        return _literal(_equal_number(value), room)
    if kind is dict:
        texts = [f"{_literal(key, room)}: {_literal(one, room)}" for key, one in dict.items(value)]
    elif kind in ITERABLE:
        texts = [_literal(one, room) for one in kind.__iter__(value)]
    elif kind is float:
        return float.__repr__(value).replace("inf", "1e999")
    else:
        return str(kind.__repr__(value))
    inner = ", ".join(texts if kind in (list, tuple) else sorted(texts))
    if kind is list:
        return f"[{inner}]"
    if kind is tuple:
        return f"({inner},)" if len(texts) == 1 else f"({inner})"
    return f"{{{inner}}}" if texts or kind is dict else "set()"


def _kind(value: Any) -> Any:
    """Return the plain type that a value is of."""
    for base in type.mro(type(value)):
        if any(base is plain for plain in PLAIN):  # not ==, which a metaclass may define
            if base in NUMBERS and value != value:
                raise TypeError("the value is not a number")
            return base
    raise TypeError("the value is not a plain one")


def _equal_number(value: Any) -> int | float:
    for kind in (int, float):
        if value - value == 0 and kind(value) == value:
            return kind(value)
    raise TypeError("the value is not a plain one")


def _tuple_of(text: str) -> tuple[object, ...]:
    """Return arguments as they would stand in a call, all of them literals."""
    value = ast.literal_eval(f"({text.strip().rstrip(',')},)" if text.strip() else "()")
    assert type(value) is tuple
    return value


def _run(source: str, call: str, arguments: str | None, room: int) -> str:
    # The arguments first: a program that is not there yet cannot be told from another by them.
    given = None if arguments is None else _tuple_of(arguments)
    # What is called is imported: the lines under ``if __name__ == "__main__"`` are for who runs it by hand.
    program = types.ModuleType("program" if call.strip() else "__main__")
    sys.modules[program.__name__] = program
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


def _of_json(value: object) -> object:
    """Return a value with lists for tuples and texts for numbers that are keys, as JSON has them."""
    match value:
        case list() | tuple():
            return [_of_json(one) for one in value]
        case dict():
            return {str(key) if type(key) is int else key: _of_json(one) for key, one in value.items()}
    return value


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

    def same(self, first: str, second: str, as_json: bool) -> bool:
        """Whether two texts are literals of equal values, or of values that are the same JSON."""
        warnings.simplefilter("ignore")  # as of a backslash before a d, which Python reads all the same
        try:
            one, other = (ast.literal_eval(text.strip()) for text in (first, second))
            return bool(_of_json(one) == _of_json(other) if as_json else one == other)
        except Exception:  # noqa: BLE001 - the text is a model's
            return False
