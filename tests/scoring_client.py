"""A client without a model that answers and scores by functions, for tests of programs."""

from collections.abc import Callable

from sparring.core import Messages, MockInferenceClient


class ScoringClient(MockInferenceClient):
    """Answers by ``answer`` and scores by ``score``, of the model and the last message.

    ``asked`` are the models and the whole prompts of all answers, in the order they came.
    """

    def __init__(
        self,
        answer: Callable[[str, str], str],
        score: Callable[[str, str, str], float] = lambda model, prompt, text: -1.0,
    ) -> None:
        super().__init__()
        self.answer_of, self.score_of = answer, score
        self.asked: list[tuple[str, Messages]] = []

    async def complete(self, messages, *args, model=None, **options):
        self.asked.append((model or "", messages))
        self.responses = [self.answer_of(model or "", messages[-1]["content"])]
        self.calls = 0
        return await super().complete(messages, *args, model=model, **options)

    async def score(self, messages, completions, *, model=None):
        return [self.score_of(model or "", messages[-1]["content"], text) for text in completions]
