"""TinkerClient: answers of base models and of saved weights at a service with Tinker's API."""

from dataclasses import replace

from sparring.core import (
    EpisodeError,
    InferenceClient,
    InputError,
    Messages,
    ModelResponse,
    TransientError,
)
from sparring.core.client import before_stop
from sparring.core.messages import said
from sparring.core.reasoning import ReasoningTags
from sparring.core.sampling import AS_LEARNED, Sampling
from sparring.finetune.tinker_service import TinkerService


def check_call(
    max_reasoning: int | None, sampling: Sampling | None, reasoning: ReasoningTags = "auto"
) -> None:
    """Raise an InputError unless Tinker's API has what a call asks for, whatever the ``reasoning``."""
    if max_reasoning is not None:
        problem = f"is {max_reasoning}, and Tinker's API has no such limit"
        raise InputError("max_reasoning", problem, "Leave it out, and limit max_tokens")
    kept = sampling or AS_LEARNED
    if replace(kept, top_p=AS_LEARNED.top_p, top_k=AS_LEARNED.top_k) != AS_LEARNED:
        fix = "Set only temperature, top_p and top_k"
        raise InputError("sampling", "has min_p or repetition_penalty, which Tinker's API lacks", fix)


class TinkerClient(InferenceClient):
    """A client whose model names are base models, or paths of weights. An answer within ``timeout`` seconds.

    Messages are rendered by the base model's chat template; earlier answers keep their token ids. The three
    token fields of a response are ``None``: the service does not say whether its log-probabilities are those
    of the draw.
    """

    def __init__(self, service: TinkerService, timeout: float) -> None:
        self.service = service
        self.timeout = timeout

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        max_reasoning: int | None = None,
        sampling: Sampling | None = None,
        reasoning: ReasoningTags = "auto",
    ) -> ModelResponse:
        """Answer ``messages``. Texts to ``stop`` at are cut off here, since the service takes no text beside
        the tokens that end a turn.

        Raises TransientError: there is no answer now; EpisodeError: these messages are refused; InputError:
        no call can succeed.
        """
        check_call(max_reasoning, sampling)
        kept = sampling or AS_LEARNED
        if model is None:
            raise InputError("model", "is missing, and Tinker's API has no default", "Name a model")
        sampler = await self.service.sampler(model)
        base = await self.service.base(sampler.get_base_model())
        prompt, types = base.tokens.render(messages), self.service.sdk.types
        params = types.SamplingParams(
            max_tokens=max_tokens,
            seed=None if seed is None else seed % 2**31,
            stop=base.tokens.stop_token_ids,
            temperature=temperature,
            top_p=kept.top_p,
            top_k=kept.top_k or -1,
        )
        answer = await self.service.ask(
            lambda: sampler.sample(types.ModelInput.from_ints(prompt), 1, params),
            f"model {model}",
            self.timeout,
            refused=EpisodeError,
            failure=TransientError,
        )
        drawn, *others = [list(one.tokens) for one in answer.sequences] or [[-1]]
        if others or min(drawn, default=0) < 0:
            raise TransientError(f"{self.service.host}, model {model}: the reply is not one answer")
        ends = bool(drawn) and drawn[-1] in base.tokens.stop_token_ids
        written, parts = base.reader.read(prompt, drawn[:-1] if ends else drawn, reasoning)
        cut = before_stop(parts.said, stop)
        response = ModelResponse(
            written,
            [said("assistant", written, drawn)],
            finish_reason="stop" if ends or cut is not None else "length",
        )
        return response.in_parts(parts if cut is None else replace(parts, said=cut), written)
