"""Tinker's SDK: ask_tinker.py URL MODEL, with the key in SPARRING_API_KEY: two models train side by side
and are resumed."""

import json
import os
import sys
from importlib.metadata import version

import tinker
from tinker import types

url, model = sys.argv[1:]
account = {"base_url": url.removesuffix("/v1"), "api_key": f"tml-{os.environ['SPARRING_API_KEY']}"}
service, rest = tinker.ServiceClient(**account), tinker.RestClient(**account)
adam = types.AdamParams(learning_rate=0.01)


def data(tokenizer: object, text: str) -> list[types.Datum]:
    """Return a text as a sample, twice."""
    ids = tokenizer.encode(text)
    inputs = {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)}
    return [types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)] * 2


def loss(client: tinker.TrainingClient, text: str) -> float:
    """Return the loss before a step, which is made."""
    samples = data(client.get_tokenizer(), text)
    gradients = client.forward_backward(samples, "cross_entropy")
    client.optim_step(adam).result()
    return gradients.result().metrics["loss:sum"]


def custom(samples: list[types.Datum], logprobs: list[object]) -> tuple[object, dict[str, float]]:
    """A loss of a client's own."""
    return -sum(one.sum() for one in logprobs), {}


texts = ["the rules are short", "another text"]
clients = [
    service.create_lora_training_client(base_model=model, rank=rank, seed=1).result() for rank in (2, 5)
]
losses = [[loss(client, text) for _ in range(3)] for client, text in zip(clients, texts, strict=True)]
first = clients[0]
own = first.forward_backward_custom(data(first.get_tokenizer(), texts[0]), custom).result()
state = first.save_state("state").result().path
resumed = service.create_training_client_from_state_with_optimizer(state).result()
fresh = service.create_training_client_from_state(state).result()
sampler = first.save_weights_and_get_sampling_client().result()
prompt = types.ModelInput.from_ints(first.get_tokenizer().encode(texts[0]))
drawn = sampler.sample(prompt, 2, types.SamplingParams(max_tokens=4, seed=1), topk_sample_logprobs=2).result()
named = service.create_sampling_client(
    model_path=first.save_weights_for_sampler("named").result().path
).result()
try:
    refused = first.forward_backward(data(first.get_tokenizer(), "x y"), "stable_reinforce").result()
except tinker.RequestFailedError as error:
    refused = str(error)
scored = {
    name: sum(client.compute_logprobs(prompt).result()[1:])
    for name, client in {
        "trained": sampler,
        "named": named,
        "base": service.create_sampling_client(base_model=model).result(),
    }.items()
}
print(
    json.dumps(
        {
            "version": version("tinker"),
            "ranks": [one.get_info().lora_rank for one in clients],
            "losses": losses,
            "custom": own.metrics["loss:sum"],
            "resumed": [loss(one, texts[0]) for one in (resumed, fresh)],
            "drawn": [len(one.tokens) for one in drawn.sequences],
            "likeliest": [list(one.topk_logprobs_np.token_ids.shape) for one in drawn.sequences],
            "scored": scored,
            "refused": refused,
            "checkpoints": [
                one.checkpoint_id for one in rest.list_checkpoints(first.model_id).result().checkpoints
            ],
            "runs": rest.list_training_runs().result().cursor.total_count,
            "weights": rest.get_weights_info_by_tinker_path(state).result().lora_rank,
        }
    )
)
service.close("success").result()
