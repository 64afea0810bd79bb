"""Rounds of a verifier and of provers (Kirchner et al. 2024, arXiv 2407.13692).

A helpful prover is to convince the verifier of right answers, a sneaky one of wrong answers. A round begins
with updates of the verifier: it learns the truth of solutions of the untrained model and of the provers of
every round before, all in equal shares. Then the provers learn from its scores.
"""

import random
from collections import Counter
from typing import Any

from sparring.config.adversarial_programs import ProverVerifierSettings
from sparring.core import (
    Artifact,
    ArtifactStore,
    EpisodeRequest,
    GenerateResult,
    InputError,
    Role,
    Rollout,
    TrainingBatch,
    derive_seed,
)
from sparring.core.adapters import BASE
from sparring.core.credit.assigners import TARGET
from sparring.programs.program_arena import ProgramArena
from sparring.programs.prover_episodes import ProveEpisode, VerifyEpisode
from sparring.programs.solutions import (
    AUTHOR,
    HELPFUL,
    SNEAKY,
    VERIFIER,
    KeptSolution,
    balanced_weights,
    gated_convincingness,
    relative_convincingness,
)
from sparring.programs.task_sources import load_split
from sparring.programs.tasks import in_turns, question_key

FIELD = "program.questions"
PROVERS = (HELPFUL, SNEAKY)


class ProverVerifierArena(ProgramArena[ProverVerifierSettings]):
    """Solutions to questions, of which one half is the provers' and the other the verifier's.

    The role ``Author`` is the untrained model, whose solutions the verifier learns from in every round. Those
    of the provers of past rounds are in the store ``solutions``. ``credit_assigner`` makes advantages of the
    provers' rewards, by default GRPO; the verifier's examples have their weight.
    """

    def set_up(self) -> None:
        """Load the questions, one half for the provers and the other for the verifier."""
        settings = self.settings
        self.task, trained, self.held_out = load_split(settings.questions, FIELD)
        keys = {number: question_key(self.task.questions[number].text) for number in trained}
        different = list(dict.fromkeys(keys.values()))
        if len(different) < 2:
            raise InputError(FIELD, "there is only one question to learn from", "Give more, for two halves")
        proved = {*different[: len(different) // 2]}
        self.for_provers = [number for number in trained if keys[number] in proved]
        self.for_verifier = [number for number in trained if keys[number] not in proved]
        for name in PROVERS:
            self.add_role(Role(name, policy=settings.prover_policy))
        self.add_role(Role(VERIFIER, policy=settings.verifier_policy))
        self.add_role(Role(AUTHOR, policy=BASE))
        self.add_episode("prove", ProveEpisode(self.task))
        self.add_episode("verify", VerifyEpisode(self.task))
        self.add_store("solutions", ArtifactStore(settings.store_size, derive_seed(self.seed, "solutions")))

    @property
    def _place(self) -> tuple[int, int]:
        """The round, from 1, and the place of the update in it, from 0. Updates are numbered from 1."""
        updates = self.settings.verifier_updates + self.settings.prover_updates
        number, place = divmod(self.step_num - 1, updates)
        return number + 1, place

    def get_batch(self) -> list[EpisodeRequest]:
        """Return the requests of the phase: examples for the verifier, or solutions of provers."""
        number, place = self._place
        if place < self.settings.verifier_updates:
            return self._examples(number, (number - 1) * self.settings.verifier_updates + place)
        return self._solutions()

    def _solutions(self) -> list[EpisodeRequest]:
        """Return solutions in groups: one question, and one prover drawn by chance."""
        size, each = self.settings.batch_size, self.settings.solutions_per_question
        numbers = in_turns(self.for_provers, self.seed, self.step_num - 1, size, each)
        rng = random.Random(derive_seed(self.seed, "goals", self.step_num))
        goals = [rng.choice(PROVERS) for _ in range(0, size, each)]
        return [
            EpisodeRequest("prove", self._asked(number, goals[place // each]), {"group": place // each})
            for place, number in enumerate(numbers)
        ]

    def _examples(self, number: int, update: int) -> list[EpisodeRequest]:
        """Return examples of every round in turn, for the verifier's ``update``, from 0.

        Round 0 is the untrained model's. The last round's provers write theirs now, the solutions of those
        before are drawn.
        """
        kept = self._kept()
        rounds = [0, *(one for one in kept if one < number - 1), *([number - 1] if number > 1 else [])]
        size = self.settings.batch_size
        numbers = in_turns(self.for_verifier, self.seed, self.step_num - 1, size, 1)
        rng = random.Random(derive_seed(self.seed, "examples", self.step_num))
        requests = []
        for place, question in enumerate(numbers):
            turn = place // len(rounds)
            one = rounds[(update * size + place) % len(rounds)]
            if 0 < one < number - 1:
                wanted = [solution for solution in kept[one] if solution["right"] == bool(turn % 2)]
                artifact = dict(rng.choice(wanted or kept[one]))
            else:
                author = PROVERS[turn % 2] if one else AUTHOR
                artifact = self._asked(question, author) | {"round": one}
            requests.append(EpisodeRequest("verify", artifact))
        return requests

    def _kept(self) -> dict[int, list[KeptSolution]]:
        """Return the solutions that are kept, by round, oldest first."""
        kept: dict[int, list[KeptSolution]] = {}
        for one in self.stores["solutions"].all():
            kept.setdefault(one.data["round"], []).append(one.data)
        return kept

    def _asked(self, number: int, author: str) -> dict[str, Any]:
        return {"number": number, "question": self.task.questions[number].text, "author": author}

    def adjust_rewards(self, results: list[GenerateResult]) -> None:
        """Make the provers' rewards of their groups' scores, and weigh the verifier's examples."""
        finished = [result.rollout for result in results if result.rollout.error is None]
        proved = [one for one in finished if one.episode_type == "prove"]
        if self.settings.reward == "gated":
            self._pay(proved)
        else:
            for group in dict.fromkeys(one.meta["group"] for one in proved):
                self._pay([one for one in proved if one.meta["group"] == group])
        taught = [one for one in finished if one.episode_type == "verify"]
        sources = [one.artifact["round"] for one in taught]
        weights = balanced_weights(sources, [one.extras["right"] for one in taught])
        for rollout, weight in zip(taught, weights, strict=True):
            rollout.steps[0].info[TARGET] = weight

    def _pay(self, rollouts: list[Rollout]) -> None:
        """Pay solutions that are compared with each other."""
        scores = [one.extras["score"] for one in rollouts]
        aligned = [one.extras["aligned"] for one in rollouts]
        if self.settings.reward == "gated":
            rewards = gated_convincingness(scores, aligned, self.settings.gate)
        else:
            rewards = relative_convincingness(scores, aligned)
        for rollout, reward in zip(rollouts, rewards, strict=True):
            rollout.set_reward(rollout.artifact["author"], reward)

    def end_step(self, number: int, results: list[GenerateResult], verbose: bool = False) -> TrainingBatch:
        """Keep the solutions that provers wrote for the verifier in this update."""
        batch = super().end_step(number, results, verbose)
        for result in results:
            rollout = result.rollout
            is_new = rollout.error is None and rollout.episode_type == "verify"
            if is_new and rollout.artifact["author"] in PROVERS and "text" not in rollout.artifact:
                solution = rollout.artifact | {name: rollout.extras[name] for name in ("text", "right")}
                self._keep(Artifact(solution, rollout.id))
        return batch

    def _keep(self, solution: Artifact) -> None:
        """Keep a solution; if there is no room, the oldest of the round that has most makes room."""
        store = self.stores["solutions"]
        if store.count() >= self.settings.store_size:
            every = store.all()
            sizes = Counter(one.data["round"] for one in every)
            store.remove(next(one.id for one in every if sizes[one.data["round"]] == max(sizes.values())))
        store.add(solution)

    async def evaluate(self) -> dict[str, list[float]]:
        """Let both provers solve held-out questions, always with the same seeds; failed episodes are left
        out.

        ``right, NAME``: 1 or 0 for each solution of a prover. ``accepted right, Helpful`` and ``accepted
        wrong, Sneaky``: whether the verifier believes the right solutions of the one, and the wrong ones of
        the other. ``verifier accuracy``: 1 or 0 for each solution.
        """
        requests = [
            self.evaluation_request("prove", self._asked(number, author), author, place)
            for place, number in enumerate(self.held_out[: self.settings.evaluation_questions])
            for author in PROVERS
        ]
        played = [(one.artifact["author"], one.extras) for one in await self.finished(requests)]

        def accepted(name: str, right: bool) -> list[float]:
            found = [one for author, one in played if author == name and one["right"] == right]
            return [float(one["score"] > 0) for one in found]

        return {
            **{
                f"right, {name}": [float(one["right"]) for author, one in played if author == name]
                for name in PROVERS
            },
            "accepted right, Helpful": accepted(HELPFUL, True),
            "accepted wrong, Sneaky": accepted(SNEAKY, False),
            "verifier accuracy": [float((one["score"] > 0) == one["right"]) for _, one in played],
        }
