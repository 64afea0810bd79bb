"""Episodes of an arena whose client is an OpenAIClient."""

import asyncio

from openai_clients import LIMIT, client_of
from replying_server import completion, http, serving, with_tokens
from sparring.core import Arena, EpisodeRequest, Role, Rubric, SingleTurnEpisode


class Sum(SingleTurnEpisode):
    """Asks for a sum; everyone gets 1."""

    episode_type = "sum"

    @property
    def rubric(self) -> Rubric:
        return Rubric([lambda rollout, arena: {"solver": 1.0}])

    def get_initial_actor(self, artifact, state):
        return "solver"

    def get_initial_prompt(self, arena, artifact, state):
        return artifact


async def test_a_lasting_fault_during_one_episode_costs_only_that_episode():
    replies = http(with_tokens([1], [7], [-0.5])), http("{"), http("{"), http(completion("5"))
    async with serving(*replies) as server:
        client = client_of(server, retries=1)
        arena = Arena(client, max_calls=1, retries=0)
        arena.add_role(Role("solver"))
        arena.add_episode("sum", Sum())
        requests = [EpisodeRequest("sum", "2 + 2?") for _ in range(3)]
        results = await asyncio.wait_for(arena.generate_rollouts(requests), LIMIT)
        await client.close()
    errors = [result.rollout.error for result in results]
    assert (errors[0], errors[2]) == (None, None)
    assert "the answer cannot be read" in errors[1]
    assert "(tries: 2)" in errors[1]
    batch = arena.build_training_batch(results)
    assert [record.completion_token_ids for record in batch.records] == [[7]]
