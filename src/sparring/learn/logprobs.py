"""Log-probabilities of a plan's predictions, with a gradient, in a bounded amount of memory.

A plan that is larger than one forward pass may be goes through the model in sections (``tree_attention``).
The backward pass visits the sections in reverse. Sections whose activations do not fit into memory are
computed again for their gradient, which changes no bit of it. A [nodes, vocabulary] tensor of logits is
large: no score keeps one until the backward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sparring.core.errors import first_line
from sparring.core.pass_sizes import ROWS_AT_ONCE
from sparring.learn.flex_attention import COMPILE_ERRORS, TreeAttention
from sparring.learn.memory import KeptMemory
from sparring.learn.policy import PolicyModel
from sparring.learn.tree_attention import KeptKeys, RunAttention, Section, sections_of, whole
from sparring.learn.trie import TreePlan

Score = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits_NV, rows_c, tokens_c) -> the log-probabilities of the tokens and further numbers, a row each."""


def token_scores(
    logits_NV: Tensor, rows_c: Tensor, tokens_c: Tensor, *, entropies: bool, hits: bool
) -> Tensor:
    """Return the log-probability of each token, the entropy in nats of the distribution over the vocabulary
    that it is of, and 1 where it is the likeliest token, as far as asked for."""
    if entropies:
        logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)
        rows = [logprobs_NV[rows_c, tokens_c], entropy_N[rows_c]]
    else:
        normaliser_N = torch.logsumexp(logits_NV, dim=-1)
        rows = [logits_NV[rows_c, tokens_c] - normaliser_N[rows_c]]
    if hits:
        hits_c = logits_NV.detach().argmax(dim=-1)[rows_c] == tokens_c
        rows.append(hits_c.to(logits_NV.dtype))
    return torch.stack(rows)


class _DrawnLogprobs(torch.autograd.Function):
    """Log-probabilities of tokens; the logits are made again for the gradient, which is computed in place.

    With p the softmax of a row of logits, the gradient of log p(token) is 1 at the token, less p.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, logits: Callable[[Tensor], Tensor], rows_c: Tensor, tokens_c: Tensor
    ) -> Tensor:
        logits_NV = logits(hidden_ND)
        normaliser_N = torch.logsumexp(logits_NV, dim=-1)
        ctx.save_for_backward(hidden_ND, normaliser_N, rows_c, tokens_c)
        ctx.logits = logits
        return logits_NV[rows_c, tokens_c] - normaliser_N[rows_c]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (into_c,) = gradients
        hidden_ND, normaliser_N, rows_c, tokens_c = ctx.saved_tensors
        with torch.enable_grad():
            hidden_ND = hidden_ND.detach().requires_grad_()
            logits_NV = ctx.logits(hidden_ND)
        into_N = torch.zeros_like(normaliser_N).index_add_(0, rows_c, into_c)
        into_NV = (logits_NV.detach() - normaliser_N[:, None]).exp_().mul_(-into_N[:, None])
        into_NV.index_put_((rows_c, tokens_c), into_c, accumulate=True)
        torch.autograd.backward(logits_NV, into_NV)
        return hidden_ND.grad, None, None, None


@dataclass
class PassLimits:
    """The largest forward pass, in tokens, the memory for activations, and how attention is computed.

    ``attention`` becomes attention in runs if the kernel of another cannot be compiled for a pass.
    """

    max_tokens: int
    memory: KeptMemory
    attention: TreeAttention = RunAttention


def plan_logprobs(
    policy: PolicyModel,
    plan: TreePlan,
    temperature: float | None = None,
    limits: PassLimits | None = None,
) -> Tensor:
    """Run the active adapter over ``plan`` and return logprobs_C, one per prediction, in float32.

    ``temperature`` divides the logits, by default the plan's. Without ``limits``, one pass keeps its
    activations.
    """
    if temperature is not None:
        plan = replace(plan, temperature=temperature)
    return _PlanPass(policy, plan, limits)()


@dataclass(frozen=True)
class PlanOutputs:
    """What one pass over a plan gives for each of its C predictions, as far as it was asked for.

    ``entropy_C`` is the entropy, in nats, over the vocabulary; ``value_C`` the value of the state in which
    the token is drawn; ``hits_C`` 1 where the token is the likeliest, without a gradient.
    """

    logprobs_C: Tensor
    entropy_C: Tensor | None = None
    value_C: Tensor | None = None
    hits_C: Tensor | None = None


def plan_outputs(
    policy: PolicyModel,
    plan: TreePlan,
    limits: PassLimits | None = None,
    *,
    entropies: bool = False,
    values: Callable[[Tensor], Tensor] | None = None,
    hits: bool = False,
) -> PlanOutputs:
    """Return logprobs_C as :func:`plan_logprobs` does, with entropies, hits, and ``values`` of hidden_ND."""
    score = partial(token_scores, entropies=entropies, hits=hits) if entropies or hits else None
    scores = _PlanPass(policy, plan, limits, score, values)()
    if scores.ndim == 1:
        return PlanOutputs(scores)
    return PlanOutputs(
        scores[0],
        scores[1] if entropies else None,
        scores[-1] if values is not None else None,
        scores[1 + entropies].detach() if hits else None,
    )


def plan_states(policy: PolicyModel, plan: TreePlan, limits: PassLimits | None = None) -> Tensor:
    """Return hidden_DC, the hidden states after the last norm from which the predictions are made."""
    return _StatesPass(policy, plan, limits)()


@dataclass(eq=False, repr=False)
class _PlanPass:
    """A forward pass over a plan, section by section, that a backward pass can follow."""

    policy: PolicyModel
    plan: TreePlan
    limits: PassLimits | None
    score: Score | None = None
    state_values: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        plan, limits = self.plan, self.limits
        self.sections = [whole(plan)] if limits is None else sections_of(plan, limits.max_tokens)
        self.keys = KeptKeys.of(self.sections, self.policy.device) if len(self.sections) > 1 else None
        self.kept: dict[int, Tensor] = {}

    def __call__(self) -> Tensor:
        if self.keys is None:
            return self.values(self.sections[0])
        if not torch.is_grad_enabled():
            return torch.cat([self.values(section) for section in self.sections], dim=-1)
        anchor = torch.zeros((), requires_grad=True)  # so that autograd calls the backward pass
        values: Tensor = _InSections.apply(anchor, self)  # type: ignore[no-untyped-call]
        return values

    def forward(self) -> Tensor:
        """Compute all sections, and keep the graphs of as many of the last ones as memory allows."""
        first_kept = self._first_kept()
        values = []
        for number, section in enumerate(self.sections):
            with torch.set_grad_enabled(number >= first_kept):
                values.append(self.values(section))
            if number >= first_kept:
                self.kept[number] = values[-1]
        return torch.cat([one.detach() for one in values], dim=-1)

    def backward(self, gradient: Tensor) -> None:
        """Add the gradient of all sections to the adapter, the last section first."""
        ends = np.searchsorted(self.plan.predict_node_C, [section.stop for section in self.sections])
        pieces = torch.tensor_split(gradient, ends[:-1].tolist(), dim=-1)
        for number in reversed(range(len(self.sections))):
            values = self.kept.pop(number, None)
            if values is None:
                with torch.enable_grad():
                    values = self.values(self.sections[number])
            torch.autograd.backward(values, pieces[number])

    def values(self, section: Section) -> Tensor:
        """Run the model over a section and return the values of its predictions."""
        limits = self.limits
        if limits is None:
            return self._of_predictions(section, self._hidden_states(section, RunAttention))
        try:
            hidden_TD = self._hidden_states(section, limits.attention)
        except COMPILE_ERRORS as error:
            if limits.attention is RunAttention:
                raise
            limits.attention = RunAttention
            self.policy.use_runs(f"{type(error).__name__}: {first_line(error)}")
            hidden_TD = self._hidden_states(section, RunAttention)
        return self._of_predictions(section, hidden_TD)

    def _hidden_states(self, section: Section, attention: TreeAttention) -> Tensor:
        """Return hidden_TD of a section."""
        policy, plan, device = self.policy, self.plan, self.policy.device
        own = slice(section.start, section.stop)
        tokens_T = torch.from_numpy(plan.tokens_T[own]).to(device)
        positions_T = torch.from_numpy(plan.depths_T[own]).to(device)
        keys = None if self.keys is None else self.keys.for_section(section)
        attend = attention(plan, policy.dtype, device, section, keys)
        recompute = (
            torch.is_grad_enabled()
            and self.limits is not None
            and self.limits.memory.is_short_for(plan, section)
        )
        with policy.recomputing(recompute):
            return policy.hidden_states(tokens_T, positions_T, attend)

    def _of_predictions(self, section: Section, hidden_TD: Tensor) -> Tensor:
        plan, device = self.plan, self.policy.device
        first, stop = np.searchsorted(plan.predict_node_C, [section.start, section.stop]).tolist()
        nodes_P, row_C = np.unique(plan.predict_node_C[first:stop] - section.start, return_inverse=True)
        token_C = plan.predict_token_C[first:stop]
        pieces = []
        # A section without predictions has one empty piece, through which gradients of its keys flow.
        for begin in range(0, max(len(nodes_P), 1), ROWS_AT_ONCE):
            some = slice(*np.searchsorted(row_C, [begin, begin + ROWS_AT_ONCE]).tolist())
            hidden_ND = hidden_TD[torch.from_numpy(nodes_P[begin : begin + ROWS_AT_ONCE]).to(device)]
            rows_c = torch.from_numpy(row_C[some] - begin).to(device)
            tokens_c = torch.from_numpy(token_C[some]).to(device)
            pieces.append(self.scores(hidden_ND, rows_c, tokens_c))
        return torch.cat(pieces, dim=-1)

    def scores(self, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor) -> Tensor:
        """Return values[..., c] of predictions of tokens at N nodes; no logits are kept for the gradient."""
        scores: Tensor
        if self.score is None:
            scores = _DrawnLogprobs.apply(hidden_ND, self._logits, rows_c, tokens_c)  # type: ignore[no-untyped-call]
        elif torch.is_grad_enabled():
            arguments = (self._scored, hidden_ND, rows_c, tokens_c)
            scores = checkpoint(*arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            scores = self._scored(hidden_ND, rows_c, tokens_c)
        if self.state_values is None:
            return scores
        own = scores[None] if scores.ndim == 1 else scores
        return torch.cat([own, self.state_values(hidden_ND)[rows_c][None]])

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        logits_NV, temperature = self.policy.logits(hidden_ND), self.plan.temperature
        return logits_NV if temperature == 1 else logits_NV / temperature

    def _scored(self, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor) -> Tensor:
        assert self.score is not None
        return self.score(self._logits(hidden_ND), rows_c, tokens_c)

    def _first_kept(self) -> int:
        if self.limits is None:
            return 0
        room, number = self.limits.memory.room, len(self.sections)
        while number > 0:
            room -= self.limits.memory.of(self.plan, self.sections[number - 1])
            if room < 0:
                break
            number -= 1
        return number


class _InSections(torch.autograd.Function):
    """Let autograd see a pass in sections as one step."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, plan_pass: _PlanPass) -> Tensor:
        ctx.plan_pass = plan_pass
        return plan_pass.forward()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.plan_pass.backward(gradients[0])
        return None, None


class _StatesPass(_PlanPass):
    """A pass that returns hidden states."""

    def scores(self, hidden_ND: Tensor, rows_c: Tensor, tokens_c: Tensor) -> Tensor:
        return hidden_ND[rows_c].T
