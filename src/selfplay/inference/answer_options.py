"""What a request may ask of an answer beyond temperature, limit, seed and stop strings: for serving only.

Runs do not use it, because a policy cannot learn from tokens whose probability was changed after the model.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shaping:
    """How a distribution is shaped before a token is drawn from it; see ``shaped_logits``.

    Attributes:
        top_p: the smallest set of most likely tokens with at least this probability is kept.
        top_k: this many most likely tokens are kept; 0 keeps all.
        min_p: tokens of at least this share of the highest probability are kept.
        logit_bias: numbers that are added to the logits of tokens, each with its token.
    """

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class AnswerOptions:
    """See the module.

    Attributes:
        shaping: how distributions are shaped.
        likeliest: the number of most likely tokens that are returned for each token, with their
            log-probabilities.
        as_drawn: log-probabilities are those of the distributions that tokens are drawn from; otherwise the
            model's own: at temperature 1 and unshaped.
        prompt_logprobs: the prompt's tokens get log-probabilities too, always the model's own. Then an answer
            may have no tokens.
        stop_token_ids: further tokens that end an answer, as the model's own do.
    """

    shaping: Shaping = Shaping()
    likeliest: int = 0
    as_drawn: bool = True
    prompt_logprobs: bool = False
    stop_token_ids: tuple[int, ...] = ()


PLAIN = AnswerOptions()
