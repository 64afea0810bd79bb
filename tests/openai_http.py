"""The HTTP package of the installed ``openai``: httpx2 from its version 3 on, before that httpx, its like."""

from importlib import import_module

import openai

httpx2 = import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
