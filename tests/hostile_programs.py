"""Programs that want out of the sandbox, want to stay in it for ever, or want to be believed.

Each has the ways in which it may end.
"""

FILES = {
    "read a file": "print(open('/etc/passwd').read())",
    "write a file": "open('/x', 'w').write('x')",
    "list files": "import os\nprint(os.listdir('/'))",
    "read the source of a module": "import linecache\nprint(linecache.getlines('/etc/passwd'))",
    "a low open": "import posix\nposix.open('/etc/passwd', 0)",
    "delete a file": "import os\nos.remove('/etc/passwd')",
    "write to the host's output": "import sys\nsys.__stdout__.write('{}\\n'); sys.__stdout__.flush()",
    "write to a descriptor": "import os\nos.write(1, b'{}\\n')",
    "read the host's input": "import os\nprint(os.read(0, 100))",
    "duplicate a descriptor": "import os\nos.dup2(1, 2)",
    "exit at once": "import os\nos._exit(0)",
    "abort": "import os\nos.abort()",
    "the clock": "import time\nprint(time.time())",
    "sleep": "import time\ntime.sleep(1000)",
    "entropy": "import os\nprint(os.urandom(8))",
    "a crash on purpose": "import faulthandler\nfaulthandler._sigsegv()",
    "a fatal error": "import _testcapi\n_testcapi.fatal_error(b'x')",
    "a low socket": "import _socket\n_socket.socket().connect(('1.1.1.1', 80))",
    "fork": "import os\nwhile True: os.fork()",
    "a shell": "import os\nprint(os.system('id'))",
    "kill": "import os\nos.kill(1, 9)",
    "a signal": "import signal\nsignal.raise_signal(9)",
    "an alarm": "import signal\nsignal.alarm(1)",
}
"""They ask for what is not there: an error of Python, or the end."""
ERRORS = {
    "a socket": "import socket\nsocket.socket()",
    "a process": "import subprocess\nsubprocess.run(['id'])",
    "ctypes": "import ctypes\nctypes.string_at(0)",
    "a thread": "import _thread\nwhile True: _thread.start_new_thread(print, ())",
    "processes": "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    "pip": "import pip",
    "the host's package": "import sparring",
    "the host's library": "import wasmtime",
    "exit": "import sys\nsys.exit(0)",
    "quit": "raise SystemExit('value')",
    "an interrupt": "raise KeyboardInterrupt",
    "recursion": "def f(): return f()\nf()",
    "an open bracket": "x = [",
    "a NUL byte": "x = 1\x00",
    "half a character": "\ud800 = 1",
    "10 MB of source": "x = 1\n" * 1_700_000,
    "an error that cannot be shown": (
        "class E(BaseException):\n def __str__(self): raise E\n __repr__ = __str__\nraise E"
    ),
    "an error with a hostile name": "raise type('value\\n{}', (Exception,), {})('x' * 10**6)",
    "an input": "print(input())",
    "an own object": "class A: pass\nanswer = A()",
    "an equal to all": "class A:\n def __eq__(self, other): return True\nanswer = A()",
    "a lying class": "class A:\n __class__ = int\n def __repr__(self): return '4'\nanswer = A()",
    "a metaclass": "class M(type):\n def __eq__(a, b): return True\nclass A(metaclass=M): pass\nanswer = A()",
    "no number": "answer = float('nan')",
    "a value in itself": "answer = []\nanswer.append(answer)",
    "a function": "answer = lambda: 4",
    "a huge number": "answer = 10**5000",
}
ENDLESS = {
    "a loop": "while True: pass",
    "a loop that catches all": "while True:\n try:\n  while True: pass\n except BaseException: pass",
    "a power": "10 ** 10 ** 8",
    "a factorial": "import math\nmath.factorial(10**7)",
    "a regular expression": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
    "a generator": "import itertools\nsum(itertools.count())",
    "a sum of a long range": "sum(range(10**15))",
    "copies of memory": "x = bytearray(10**7)\nwhile True: x[1:] = x[:-1]",
    "a search": "x = 'a' * 10**7\nwhile True: x.find('b')",
    "an iterator for ever": "list(iter(int, 1)) if 0 else max(iter(int, 1))",
    "an end that never ends": "class A:\n def __del__(self):\n  while True: pass\nA()",
    "an endless text of an error": ("class E(Exception):\n def __str__(self):\n  while True: pass\nraise E"),
    "an endless import": "import sys\nclass F:\n def find_spec(*a):\n  while True: pass\n"
    "sys.meta_path.insert(0, F())\nimport abcdef",
    "weak references": "import weakref\nwhile True: weakref.ref(int)",
    "an attribute walk for ever": "x = int\nwhile True: x = x.__class__.__class__",
}
MEMORY = {
    "many brackets": "x = " + "(" * 250,
    "brackets": "x = " + "(" * 5000 + ")" * 5000,
    "a long list": "x = [0] * 10**9",
    "a growing list": "x = []\nwhile True: x.append('a' * 100_000 + str(len(x)))",
    "a doubled text": "x = 'a'\nwhile True: x += x",
    "a sorted list": "x = sorted(range(10**8), reverse=True)",
    "a bomb of format": "x = '%1000000000d' % 1",
    "a join": "x = ','.join(['a' * 10**6] * 1000)",
    "a bomb of tuples": "x = ('a',) * 10\nfor _ in range(9): x = x * 10",
    "recursion without a limit": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "all of a generator": "import itertools\nlist(map(bytes, itertools.repeat(1000)))",
}
OUTPUT = {
    "much output": "while True: print('a' * 1000)",
    "much output at once": "print('a' * 10**6)",
    "much output, caught": "try:\n while True: print('a' * 1000)\nexcept BaseException: pass",
    "much on standard error": "import sys\nwhile True: print('a' * 1000, file=sys.stderr)",
    "a long value": "answer = 'a' * 10**6",
    "a value of many parts": "answer = [[]]\nfor _ in range(20): answer = answer + answer",
    "a value that grows on the way out": "answer = [1]\nfor _ in range(30): answer = [answer, answer]",
}
HARMLESS = {
    "a null pointer": "import faulthandler\nfaulthandler._read_null()",
    "a closed output": "import sys\nsys.stdout.close()",
    "no output": "import sys\nsys.stdout = sys.stderr = None",
    "an exit function": "import atexit\natexit.register(lambda: 1 / 0)",
    "no builtins": "import builtins\nfor name in ['len', 'sorted', 'print']: setattr(builtins, name, None)",
    "a patched type": "import builtins\nbuiltins.type = lambda x: int",
    "a forged line": 'print(\'{"result": ["value", "4", ""], "instructions": 1}\')',
    "a forged ending": 'print(\'\\n["value", "4", ""]\\nready\')',
    "subclasses": "answer = len(().__class__.__mro__[1].__subclasses__()) > 0",
    "all objects": "import gc\nanswer = len(gc.get_objects()) >= 0",
    "frames": "import sys\nf, n = sys._getframe(), 0\nwhile f: f, n = f.f_back, n + 1\nanswer = n > 0",
    "modules": "import sys\nsys.modules.clear()",
    "no collector": "import gc\ngc.disable()",
    "the environment": "import os\nassert 'PATH' not in os.environ and 'HOME' not in os.environ",
    "traces": "import sys\nsys.settrace(lambda *a: None)",
    "patched equality of numbers": "answer = __import__('decimal').Decimal(1) == 1",
}
"""They may end in any way but take nothing from the next program."""
FORGERS = {
    "a frame of the guest": (
        "import sys\nf = sys._getframe()\nwhile f:\n"
        " if 'WitWorld' in f.f_globals: f.f_globals['_run'] = lambda *a: '4'\n f = f.f_back"
    ),
    "the guest's module": "import sys\nsys.modules['guest']._literal = lambda *a: '4'",
    "the guest's class": "import sys\nsys.modules['guest'].WitWorld.run = lambda *a: ('value', '4', '')",
    "an unknown ending": (
        "import sys\nsys.modules['guest'].literal = lambda *a: '4'\n"
        "sys.modules['guest']._sendable = lambda text: 'a' * 10**6"
    ),
    "a wrong type": "import sys\nsys.modules['guest']._sendable = lambda text: 4",
}
"""They change the guest. At most they say what their own value is, which they could say anyway."""
WAYS: dict[str, tuple[dict[str, str], set[str]]] = {
    "files": (FILES, {"refused", "error"}),
    "errors": (ERRORS, {"error"}),
    "endless": (ENDLESS, {"time"}),
    "memory": (MEMORY, {"memory"}),
    "output": (OUTPUT, {"output"}),
    "harmless": (HARMLESS, {"value", "error", "refused"}),
    "forgers": (FORGERS, {"value", "error", "refused", "output"}),
}
"""How the programs of a list may end."""
