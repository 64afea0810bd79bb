"""The process in which programs run: reads a request a line, and writes a line about how its program ended.

It imports only wasmtime and nothing of this package, so that it starts fast and has nothing to lose. Each
program gets a fresh copy of the component, which has no imports: there is nothing outside that it could name.
It runs until it ends or its instructions, which are counted, are used up. The process ends with its standard
input, which closes when the process of the run ends, however that ends.
"""

import json
import sys
from typing import Any

import wasmtime
from wasmtime.component import Component, Linker

LONGEST_ANSWER = 300_000
"""Characters of an answer: a program that changed the guest may return its whole memory."""
STACK = 2 * 2**20
"""Bytes of a stack, the most that wasmtime takes and four times its default. A call through C, as by
``sorted(key=...)`` or ``functools.cache``, needs some kilobytes."""


def engine() -> wasmtime.Engine:
    """Return the engine that compiles the component, and loads what it compiled."""
    config = wasmtime.Config()
    config.consume_fuel = True
    config.max_wasm_stack = STACK
    config.cranelift_nan_canonicalization = True
    return wasmtime.Engine(config)


class FreshCopies:
    """Makes a copy of the component for each call."""

    def __init__(self, compiled: str) -> None:
        self.engine = engine()
        self.component = Component.deserialize_file(self.engine, compiled)
        self.linker = Linker(self.engine)

    def call(self, function: str, arguments: list[Any], instructions: int, memory: int) -> dict[str, Any]:
        """Call a function of a fresh copy; return its result, or how it was stopped, and the instructions."""
        store = wasmtime.Store(self.engine)
        try:
            store.set_limits(memory_size=memory)
            store.set_fuel(instructions)
            found = self.linker.instantiate(store, self.component).get_func(store, function)
            answer: dict[str, Any] = {}
            try:
                answer = _short(found(store, *arguments))
            except wasmtime.WasmtimeError as error:
                answer["stopped"] = _reason(str(error), store.get_fuel())
            return answer | {"instructions": instructions - store.get_fuel()}
        finally:
            store.close()


def _reason(message: str, fuel: int) -> str:
    """Return why a copy was stopped. A stack is memory; the rest asked for what is not there, or broke."""
    if "all fuel consumed" in message or fuel == 0:
        return "time"
    return "memory" if "call stack exhausted" in message else "refused"


def _short(result: Any) -> dict[str, Any]:
    too_long = isinstance(result, tuple) and sum(map(len, result)) > LONGEST_ANSWER
    return {"stopped": "output"} if too_long else {"result": result}


def compile_component(linked: str, compiled: str) -> None:
    """Compile a component for this processor."""
    with open(compiled, "wb") as file:
        file.write(Component.from_file(engine(), linked).serialize())


def serve(compiled: str) -> None:
    """Answer requests until there are no more."""
    copies = FreshCopies(compiled)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(copies.call(**json.loads(line))), flush=True)


if __name__ == "__main__":
    (compile_component if len(sys.argv) == 3 else serve)(*sys.argv[1:])
