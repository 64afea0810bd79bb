"""The command ``sparring finetune`` against a server that accepts every claim."""

import asyncio

from replying_server import completion, http, serving
from sparring.cli.main import main

SMALL = {
    "finetune.provider.type": "dry_run",
    "finetune.rl.rollouts_per_iteration": "2",
    "finetune.rl.num_iterations": "2",
    "program.claims.count": "40",
}


def words_of(fields):
    return [word for field, value in fields.items() for word in (f"--{field}", value)]


async def finetune(name, **fields):
    """Run the command; return its status."""
    async with serving(http(completion("Decision: accept"))) as server:
        return await finetune_at(server, name, **fields)


async def finetune_at(server, name, **fields):
    fields = SMALL | fields | {"finetune.provider.base_url": f"http://127.0.0.1:{server.port}/v1"}
    return await asyncio.to_thread(main, ["finetune", "nip", "--name", name, *words_of(fields)])
