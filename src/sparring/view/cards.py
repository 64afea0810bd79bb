"""Cards: games, proofs and conversations as they are read, the same for a page and for a terminal."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

import msgspec

from sparring.core import Rollout, Step
from sparring.core.adapters import AVERAGE, TRAINED
from sparring.core.episode import Utterance
from sparring.core.messages import Messages
from sparring.core.play import GameSummary
from sparring.core.text import counted
from sparring.core.types import AgentSpec
from sparring.evaluation.results import Outcome, outcome_of
from sparring.finetune.trees import Node
from sparring.programs.proofs.state import ProofState, Round
from sparring.view.episodes import LoggedEpisode, game_of, has_invalid_move, turns_of
from sparring.view.files import converted

Tone = Literal["", "good", "warn", "bad"]
Mark = tuple[str, Tone]
"""A short remark, and whether it is a good one."""

FAILED, CUT, INVALID, TURN_LIMIT = "failed", "cut at the token limit", "with an invalid move", "turn limit"
CLAIM_RIGHT, CLAIM_WRONG = "the claim is right", "the claim is wrong"
VERDICT_RIGHT, VERDICT_WRONG, NO_VERDICT = "right verdict", "wrong verdict", "no verdict"
KINDS = (CLAIM_RIGHT, CLAIM_WRONG, VERDICT_RIGHT, VERDICT_WRONG, NO_VERDICT, INVALID, CUT, TURN_LIMIT, FAILED)
"""By what cards can be looked for, besides their rewards and words."""
TRAINED_MODELS = (TRAINED, AVERAGE)
"""The names of the trained policy and of its average in evaluations."""
TITLES = ("topic", "claim", "question", "prompt", "problem", "task", "title", "name")
"""The keys under which an artifact may name an episode's subject."""
SHORT_LINE = 100
"""A text in a line is cut to this many characters."""
_OUTCOMES = {"none": "no decision", "neither": "undecided"}


@dataclass
class CardTurn:
    """What somebody did in a game or said in a conversation.

    Attributes:
        speaker: a role, or the seat of a game; empty for the environment.
        player: who has the seat of a game.
        text: the answer: what was said.
        reasoning: what the model thought before, where only it and the reader of the run see it.
        number: the number of the turn, or of the round.
        to: who alone hears it; empty for all.
        action: the move that was found in the text, in a game.
        heard: what a player saw, or the question of an episode without a transcript.
        parts: what was said to each channel, where there are several.
        marks: remarks.
        step: the model call behind it, if there is one.
        earlier: the number of the speaker's previous turn.
        known: the number of messages that this prompt shares with that turn's prompt.
    """

    speaker: str
    text: str
    number: int = 0
    player: str = ""
    to: str = ""
    reasoning: str = ""
    action: str | None = None
    heard: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    step: Step | None = None
    earlier: int = 0
    known: int = 0


@dataclass
class Card:
    """A game, a proof or a conversation, with the sub-episodes that it spawned.

    Attributes:
        title: what it is about, in one line.
        players: the players of a game, by seat.
        outcomes: how it ended for each seat of a game.
        where: the environment of a game or the type of an episode, whose prompts may begin alike.
        rewards: what each seat or role earned.
        counts: how many turns and sub-episodes there are, in words.
        marks: remarks, such as a verdict beside the truth.
        kinds: those of ``KINDS`` that it is of.
        facts: what was given, by name.
        turns: what was done and said.
        outcome: what came out, by name.
        ending: the outcome in a few words, if there are any.
        error: why it failed.
        origin: where it comes from.
        parts: the cards of the sub-episodes; ``left_out`` counts those that are not among them.
    """

    title: str
    where: str
    rewards: dict[str, float]
    turns: list[CardTurn]
    counts: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    players: dict[str, str] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    ending: str = ""
    error: str = ""
    origin: str = ""
    parts: list["Card"] = field(default_factory=list)
    left_out: int = 0

    @property
    def mean_rewards(self) -> dict[str, float]:
        """What each role earned in the sub-episodes, on average."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for part in self.parts:
            for role, reward in part.rewards.items():
                found[role].append(reward)
        return {role: fmean(rewards) for role, rewards in found.items()}


def card_of(episode: LoggedEpisode) -> Card:
    """Return an episode as a card: a game or a proof if it has left what such episodes leave."""
    rollout = episode.rollout
    game, proof = game_of(rollout), proof_of(rollout)
    if game is not None:
        card = _game_card(episode, game)
    elif proof is not None and not rollout.error:
        card = _proof_card(episode, *proof)
    else:
        card = _conversation_card(episode)
    card.error = str(rollout.error or "")
    if any(_is_cut(step) for one in episode.all_rollouts() for step in one.steps):
        card.kinds.append(CUT)
    if any(one.error for one in episode.all_rollouts()):
        card.kinds.append(FAILED)
    if rollout.error:
        card.marks.append((FAILED, "bad"))
    if rollout.meta.get("retried"):
        card.marks.append((f"retried {rollout.meta['retried']}×", "warn"))
    return card


def tokens_text(step: Step) -> str:
    """Return the mean log-probability per token (natural logarithm) and their number; empty without any."""
    found = step.completion_logprobs
    return f"mean log-prob {fmean(found):.3f}, {counted(len(found), 'token')}" if found else ""


def in_a_line(text: str) -> str:
    """Return the beginning of a text, without line breaks."""
    line = " ".join(text.split())
    return line if len(line) <= SHORT_LINE else f"{line[:SHORT_LINE]}…"


def title_of(artifact: Any) -> str:
    """Return an episode's subject in one line; empty if its artifact does not name one.

    In a dictionary it is the value of one of the usual keys, or else the first text. A number is its own
    title.
    """
    if isinstance(artifact, dict):
        keys = [*TITLES, *artifact]
        artifact = next((artifact[key] for key in keys if isinstance(artifact.get(key), str)), "")
    return in_a_line(str(artifact)) if isinstance(artifact, str | int | float) else ""


def env_of(rollout: Rollout) -> str:
    """Return the environment of the play specification or of the steps, or else the episode type."""
    if isinstance(rollout.artifact, dict) and rollout.artifact.get("env_id"):
        return str(rollout.artifact["env_id"])
    return next((step.env_id for step in rollout.steps if step.env_id), rollout.episode_type)


# Games


def _game_card(episode: LoggedEpisode, game: GameSummary) -> Card:
    rollout = episode.rollout
    env_id, invalid = env_of(rollout), has_invalid_move(game)
    marks: list[Mark] = [("invalid move", "bad")] * invalid
    marks += [(TURN_LIMIT, "warn")] * game["truncated"]
    reasons = [one["reason"] for one in game["game_info"].values() if one.get("reason")]
    return Card(
        title=f"Game {episode.index}",
        where=env_id,
        rewards={f"seat {pid}": reward for pid, reward in sorted(game["final_rewards"].items())},
        turns=list(_game_turns(rollout, game)),
        counts=counted(game["num_turns"], "turn"),
        outcomes={f"seat {pid}": outcome_of(game["final_rewards"], pid) for pid in game["final_rewards"]},
        players=_players(rollout, game),
        marks=marks,
        kinds=[INVALID] * invalid + [TURN_LIMIT] * game["truncated"],
        ending=str(reasons[0]) if reasons else "",
    )


def _game_turns(rollout: Rollout, game: GameSummary) -> Iterator[CardTurn]:
    """Yield the moves, each with the model call behind it."""
    for number, (turn, found) in enumerate(turns_of(rollout, game), start=1):
        marks: list[Mark] = []
        if turn["kind"] == "policy":
            marks.append(("well formed", "good") if turn["well_formed"] else ("malformed", "warn"))
        if turn["invalid"]:
            marks.append(("invalid", "bad"))
        marks += _call_marks(found)
        marks += [("explored", "")] * bool(found and found.info.get("explored"))
        yield CardTurn(
            f"seat {turn['pid']}",
            turn["text"],
            number,
            player_name(turn["kind"], turn["model"]),
            action=turn["action"],
            heard=turn["observation"].strip("\n"),
            reasoning=turn.get("reasoning", ""),
            marks=marks,
            step=found,
        )


def _players(rollout: Rollout, game: GameSummary) -> dict[str, str]:
    agents = rollout.artifact.get("agents") if isinstance(rollout.artifact, dict) else None
    named = converted(agents, list[AgentSpec])
    if named:
        return {f"seat {pid}": player_name(one.kind, one.model) for pid, one in enumerate(named)}
    turns = sorted(game["turns"], key=lambda turn: turn["pid"])
    return {f"seat {turn['pid']}": player_name(turn["kind"], turn["model"]) for turn in turns}


def player_name(kind: str, model: str) -> str:
    """Name a player: ``trained``, or the name or the kind of the opponent."""
    is_trained = kind == "policy" or (kind == "model" and model in TRAINED_MODELS)
    return "trained" if is_trained else model or kind or "opponent"


# Proofs


class _Tree(msgspec.Struct):
    nodes: list[Node] = []


def proof_of(rollout: Rollout) -> tuple[ProofState, list[Node]] | None:
    """Return a proof, and the nodes of a tree of responses; ``None`` for another episode."""
    state, tree = converted(rollout.extras, ProofState), converted(rollout.extras, _Tree)
    return None if state is None or tree is None else (state, tree.nodes)


def _proof_card(episode: LoggedEpisode, state: ProofState, nodes: list[Node]) -> Card:
    """Return a proof; of a tree of responses its first branch."""
    rollout = episode.rollout
    path = _first_branch(nodes)
    rounds = [node["round"] for node in path] or state["rounds"]
    verdict = (path[-1] if path else state)["decision"].get("verdict")
    parents = {node["parent"] for node in nodes}
    ends = sum(node["id"] not in parents for node in nodes)
    rewards: dict[str, float] = {}
    for one in rounds:
        for agent, reward in one["rewards"].items():
            rewards[agent] = rewards.get(agent, 0.0) + reward
    truth = CLAIM_RIGHT if state["y"] == 1 else CLAIM_WRONG
    outcome = _OUTCOMES.get(str(verdict), f"{verdict}ed")
    kind, tone = _judged(verdict, is_true=state["y"] == 1)
    places: list[str | int] = [node["id"] for node in path] or list(range(len(rounds)))
    turns = list(_proof_turns(rollout, rounds, places))
    stances = {f"{agent} argues for": stance for agent, stance in state["stances"].items()}
    branches = f"the first of {ends} branches" if ends > 1 else ""
    return Card(
        title=in_a_line(state["claim"]),
        where=rollout.episode_type,
        rewards=rewards,
        turns=turns,
        counts=counted(len(turns), "answer"),
        marks=[(f"{outcome}; {truth}", tone)],
        kinds=[truth, kind],
        facts={"question": state["question"], "claim": state["claim"], "truth": truth, **stances},
        ending=f"{outcome}; {truth}{f' ({branches})' if branches else ''}",
        origin="; ".join(filter(None, (rollout.id or "no id", branches))),
    )


def _judged(verdict: object, *, is_true: bool) -> tuple[str, Tone]:
    if verdict not in ("accept", "reject"):
        return NO_VERDICT, "warn"
    return (VERDICT_RIGHT, "good") if is_true == (verdict == "accept") else (VERDICT_WRONG, "bad")


def _first_branch(nodes: list[Node]) -> list[Node]:
    path: list[Node] = []
    for node in nodes:
        if node["parent"] == (path[-1]["id"] if path else None):
            path.append(node)
    return path


def _proof_turns(rollout: Rollout, rounds: list[Round], places: list[str | int]) -> Iterator[CardTurn]:
    calls = {(step.info.get("node", step.info.get("round")), step.role_id): step for step in rollout.steps}
    for number, (played, place) in enumerate(zip(rounds, places, strict=True), start=1):
        for agent, answer in played["answers"].items():
            marks: list[Mark] = []
            if answer["decision"].get("verdict") != "none":
                marks.append((f"decides: {in_a_line(str(answer['decision'].get('raw')))}", ""))
            if not answer["valid"]:
                marks.append(("invalid", "bad"))
            if answer["retries"]:
                marks.append((f"{counted(answer['retries'], 'invalid answer')} before", "warn"))
            marks += [(CUT, "warn")] * answer["cut"]
            said = answer["messages"]
            text = "\n".join(said.values()) or answer["raw"].strip()
            parts = said if len(said) > 1 else {}
            step = calls.get((place, agent))
            thought = "" if step is None else step.reasoning
            yield CardTurn(agent, text, number, parts=parts, marks=marks, step=step, reasoning=thought)


# Conversations


def _conversation_card(episode: LoggedEpisode) -> Card:
    rollout = episode.rollout
    turns = dialogue(rollout)
    artifact = {} if rollout.artifact is None else rollout.artifact
    extras = {name: value for name, value in rollout.extras.items() if name != "transcript"}
    opening = turns[0].text if turns and not turns[0].speaker else ""
    counts = [rollout.episode_type]
    if len(rollout.steps) > 1:
        counts.append(counted(len(rollout.steps), "answer"))
    if episode.children:
        counts.append(counted(len(episode.children), "sub-episode"))
    noted = [
        f"{name.replace('_', ' ')}: {value}"
        for name, value in extras.items()
        if isinstance(value, str | int | float)
    ]
    return Card(
        title=title_of(rollout.artifact) or in_a_line(opening),
        where=rollout.episode_type,
        rewards=rollout.rewards,
        turns=turns,
        counts=", ".join(counts),
        facts=artifact if isinstance(artifact, dict) else {"about": artifact},
        outcome=extras | rollout.metrics,
        ending=", ".join(text for text in noted if len(text) <= SHORT_LINE),
        origin=_origin(episode),
        parts=[card_of(child) for child in episode.children],
        left_out=episode.left_out,
    )


def _origin(episode: LoggedEpisode) -> str:
    rollout = episode.rollout
    parts = [rollout.id or "no id"]
    if "group" in rollout.meta:
        parts.append(f"group {rollout.meta['group']}")
    if rollout.meta.get("policy_version") is not None:
        parts.append(f"policy version {rollout.meta['policy_version']}")
    if episode.depth == 0 and rollout.meta.get("parent_id"):
        parts.append(f"sub-episode of {rollout.meta['parent_id']}, which is not in the log")
    if episode.left_out:
        parts.append(f"{counted(episode.left_out, 'deeper sub-episode')} not shown")
    return ", ".join(parts)


def dialogue(rollout: Rollout) -> list[CardTurn]:
    """Return the turns of a conversation in order.

    Each of a role's lines in the transcript is matched with its step of the same text, or else with its next
    step. Steps that are missing from the transcript (all of them in an episode that is not a chat) are placed
    before the role's next matched step.
    """
    turns: list[CardTurn] = []
    waiting = list(rollout.steps)
    for said in converted(rollout.extras.get("transcript"), list[Utterance]) or []:
        own = [place for place, step in enumerate(waiting) if said.author and step.role_id == said.author]
        alike = [place for place in own if waiting[place].completion_text == said.text]
        place = next(iter(alike + own), None)
        turn = CardTurn(said.author, said.text, to=said.to)
        if place is not None:
            turn.step = waiting[place]
            turn.reasoning = turn.step.reasoning
            turns += [_turn_of(step) for step in waiting[:place] if step.role_id == said.author]
            waiting = [step for step in waiting[:place] if step.role_id != said.author] + waiting[place + 1 :]
        turns.append(turn)
    turns += [_turn_of(step) for step in waiting]
    _number(turns)
    return turns


def _turn_of(step: Step) -> CardTurn:
    """Return a turn for a step that is not in the transcript, with the end of its prompt as the question."""
    asked = "" if not step.prompt or step.prompt[-1]["role"] == "assistant" else step.prompt[-1]["content"]
    return CardTurn(step.role_id, step.completion_text, heard=asked, step=step, reasoning=step.reasoning)


def _number(turns: list[CardTurn]) -> None:
    """Number the turns of roles, and find how much of each prompt the role's previous prompt contains."""
    latest: dict[str, tuple[int, Messages]] = {}
    for number, turn in enumerate((turn for turn in turns if turn.speaker), start=1):
        turn.number = number
        if turn.step is None:
            continue
        turn.marks = _call_marks(turn.step)
        earlier, prompt = latest.get(turn.speaker, (0, []))
        if prompt and turn.step.prompt[: len(prompt)] == prompt:
            turn.earlier, turn.known = earlier, len(prompt)
        latest[turn.speaker] = number, turn.step.prompt


def _call_marks(step: Step | None) -> list[Mark]:
    if step is None:
        return []
    cut: list[Mark] = [(CUT, "warn")] * _is_cut(step)
    thought = step.info.get("reasoning")
    if isinstance(thought, dict) and not thought.get("ended", True):
        cut.append(("thought without an end", "warn"))
    return cut + [("text only", "warn")] * (not step.completion_logprobs)


def _is_cut(step: Step) -> bool:
    return bool(step.info.get("finish_reason") == "length")
