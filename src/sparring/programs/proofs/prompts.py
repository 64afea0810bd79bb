"""The prompts of an interactive proof, in which nothing is escaped and no template is filled, and their two
examples.

Each turn ends its prompt with a short request that names the exact form of the answer, because small models
follow the last line best. Requests stay in the conversation, so a later prompt begins with the earlier one.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from sparring.core import Messages, derive_seed
from sparring.core.messages import History, remembered, said
from sparring.core.text import speech
from sparring.programs.proofs.answers import (
    choices_text,
    decision_text,
    is_last_turn,
    read_answer,
)
from sparring.programs.proofs.protocol import Agent, Protocol, Stance, Turn
from sparring.programs.proofs.state import ProofState, first_state


@dataclass(frozen=True)
class _Example:
    """A claim, what provers say about it by stance, and how often the verifier asks before it decides."""

    question: str
    claim: str
    y: int
    said: Mapping[Stance, str]
    questions: int


_EXAMPLES = (
    _Example(
        "What is 3 + 4?",
        "3 + 4 = 7.",
        1,
        {
            "accept": "3 and 4 make 7, so the claim is right.",
            "reject": "3 and 4 do not make 7, so the claim is wrong.",
        },
        1,
    ),
    _Example(
        "What is 9 - 5?",
        "9 - 5 = 3.",
        0,
        {
            "accept": "9 less 5 is 3, so the claim is right.",
            "reject": "9 less 5 is 4 and not 3, so the claim is wrong.",
        },
        0,
    ),
)
_QUESTION = "How do you know?"


def example_proofs(protocol: Protocol, agent: str, stances: Mapping[str, Stance]) -> list[ProofState]:
    """Return a proof of a right claim and one of a wrong claim, with the right verdicts.

    The verifier asks once before it decides on the first, if it may, and decides on the second at its first
    turn that counts. An agent that a coin may silence has its turn.
    """
    return [_played(protocol, agent, stances, example, seed) for seed, example in enumerate(_EXAMPLES)]


def _played(
    protocol: Protocol, agent: str, stances: Mapping[str, Stance], example: _Example, seed: int
) -> ProofState:
    if protocol.coin is not None and agent in protocol.coin:
        seed = protocol.coin.index(agent)
    state = first_state(protocol.name, {**vars(example), "id": "example"}, seed, stances)
    asked = 0
    for number in range(protocol.last_round + 1):
        turns = protocol.turns(number, seed)
        texts = {turn.agent: _text(protocol, stances, example, turn, number, asked) for turn in turns}
        answers = {
            turn.agent: read_answer(protocol, turn, number, example.y, texts[turn.agent]) for turn in turns
        }
        state["rounds"].append({"answers": answers, "rewards": {}})
        if any(answer["decision"]["verdict"] != "none" for answer in answers.values()):
            break
        asked += any(protocol.is_verifier(name) for name in answers)
    return state


def _text(
    protocol: Protocol, stances: Mapping[str, Stance], example: _Example, turn: Turn, number: int, asked: int
) -> str:
    if protocol.is_verifier(turn.agent):
        may_decide = number in protocol.deciding_rounds
        if may_decide and (asked >= example.questions or is_last_turn(protocol, turn.agent, number)):
            return decision_text(protocol.scale, 1.0 if example.y else -1.0)
        text = _QUESTION
    else:
        text = example.said[stances.get(turn.agent, "accept" if example.y else "reject")]
    if len(turn.channels) == 1:
        return text
    return "\n".join(f"{channel}: {text}" for channel in turn.channels)


_SAYS: dict[Stance, str] = {"accept": "right", "reject": "wrong"}


def messages_for(
    protocol: Protocol,
    state: ProofState,
    turn: Turn,
    max_words: int,
    *,
    with_examples: bool = True,
    history: History = "keep",
) -> Messages:
    """Return the prompt of an agent's next turn.

    The system message has the rules, and the agent's first user message the question and the claim. The
    agent's own turns are assistant messages. What it heard since its last turn is a user message: each
    message of another agent after its name, with further lines indented, so that no text can imitate another
    agent. With ``with_examples`` two short proofs come first, as if the agent had taken part in them.
    ``history`` says what the prompt shows of the agent's own answers.
    """
    messages = [said("system", system_prompt(protocol, state, turn.agent, max_words))]
    if with_examples:
        for example in example_proofs(protocol, turn.agent, state["stances"]):
            messages += _taken_turns(protocol, example, turn.agent, max_words)
    beginning = len(messages) + 1
    taken = _taken_turns(protocol, state, turn.agent, max_words)
    asked = _asked(protocol, state, turn, len(state["rounds"]), max_words)
    return remembered([*messages, *taken, {"role": "user", "content": asked}], history, beginning)


def system_prompt(protocol: Protocol, state: ProofState, agent: str, max_words: int) -> str:
    """Return an agent's system message."""
    task = _verifier_task if protocol.is_verifier(agent) else _prover_task
    return f"{task(protocol, state, protocol.agent(agent))} {_rules(protocol, agent, max_words)}"


def _taken_turns(protocol: Protocol, state: ProofState, agent: str, max_words: int) -> Messages:
    """Return what an agent was asked in its turns so far, and what it answered."""
    messages: Messages = []
    for number, played in enumerate(state["rounds"]):
        if agent in played["answers"]:
            turn = next(one for one in protocol.turns(number, state["seed"]) if one.agent == agent)
            asked = _asked(protocol, state, turn, number, max_words)
            answer = played["answers"][agent]
            messages.append({"role": "user", "content": asked})
            spoken = answer["raw"] if answer["raw"].strip() else "..."  # some APIs refuse an empty message
            messages.append(said("assistant", spoken, answer.get("token_ids"), answer.get("written")))
    return messages


def _verifier_task(protocol: Protocol, state: ProofState, agent: Agent) -> str:
    text = f"You are {agent.name}. Decide whether a claim is right. Half of all claims are wrong."
    provers = [name for name in protocol.provers if name in state["stances"]]
    if not provers:
        return text
    if protocol.anonymous:
        return f"{text} A prover argues for one side, and you do not know for which."
    return " ".join([text, *_sides(state, provers)])


def _sides(state: ProofState, provers: list[str]) -> list[str]:
    stances = state["stances"]
    return [f"{name} argues that it is {_SAYS[stances[name]]}." for name in provers if name in stances]


def _prover_task(protocol: Protocol, state: ProofState, agent: Agent) -> str:
    judges = " and ".join(protocol.verifiers)
    text = f"You are {agent.name}. {judges} will decide whether a claim is right."
    stance = state["stances"].get(agent.name)
    if stance is not None:
        text += f" Convince {judges} that it is {_SAYS[stance]}."
    if protocol.anonymous:
        return text
    return " ".join([text, *_sides(state, [name for name in protocol.provers if name != agent.name])])


def _rules(protocol: Protocol, agent: str, max_words: int) -> str:
    limit = f"Write at most {max_words} words."
    if not protocol.is_verifier(agent):
        return limit
    questions = len(protocol.rounds_of(agent)) - 1
    if questions == 0:
        return "You cannot ask questions."
    plural = "question" if questions == 1 else "questions"
    return f"You may ask at most {questions} {plural}. {limit}"


def _asked(protocol: Protocol, state: ProofState, turn: Turn, number: int, max_words: int) -> str:
    """Return the user message of a turn: the subject if it is the agent's first, what it has heard since its
    last turn, and the request."""
    taken = [n for n in range(number) if turn.agent in state["rounds"][n]["answers"]]
    subject = [] if taken else [f"Question: {state['question']}\n\nClaim: {state['claim']}"]
    heard = _heard(protocol, state, turn, range(taken[-1] if taken else 0, number))
    return "\n\n".join([*subject, *heard, _request(protocol, state, turn, number, max_words)])


def _heard(protocol: Protocol, state: ProofState, turn: Turn, rounds: range) -> list[str]:
    channels = _reading_order(protocol, state, turn, rounds.stop)
    words = []
    for number in rounds:
        answers = state["rounds"][number]["answers"]
        for channel in channels:
            for author, answer in answers.items():
                if author != turn.agent and channel in answer["messages"]:
                    name = _shown_name(protocol, author)
                    label = name if len(channels) == 1 else f"{name} ({channel})"
                    words.append(speech(label, answer["messages"][channel]))
    return words


def _reading_order(protocol: Protocol, state: ProofState, turn: Turn, number: int) -> list[str]:
    """Return the channels that an agent sees: a prover reads its own last, a verifier may shuffle them."""
    channels = protocol.seen_by(turn.agent)
    if not protocol.is_verifier(turn.agent):
        return sorted(channels, key=lambda channel: channel in turn.channels)
    if protocol.shuffled_channels:
        random.Random(derive_seed(state["seed"], "channels", number)).shuffle(channels)
    return channels


def _shown_name(protocol: Protocol, author: str) -> str:
    return "prover" if protocol.anonymous and not protocol.is_verifier(author) else author


def _request(protocol: Protocol, state: ProofState, turn: Turn, number: int, max_words: int) -> str:
    if protocol.is_verifier(turn.agent):
        return _verifier_request(protocol, turn, number)
    stance = state["stances"].get(turn.agent)
    argue = f"Argue in at most {max_words} words that the claim is {_SAYS[stance]}" if stance else ""
    return _in_form(argue or f"Answer in at most {max_words} words", turn.channels)


def _verifier_request(protocol: Protocol, turn: Turn, number: int) -> str:
    choices = choices_text(protocol.scale)
    if protocol.scale == "accept_reject":
        choices = "accept\nor\nDecision: reject"
    if is_last_turn(protocol, turn.agent, number):
        only = "" if number == 0 else "You cannot ask any more questions. "
        return f"{only}Decide now. Write one line and nothing else:\nDecision: {choices}"
    question = _in_form("Ask a question", turn.channels)
    if number not in protocol.deciding_rounds:
        return question
    return f"{question}\nOr decide. Then write one line and nothing else:\nDecision: {choices}"


def _in_form(task: str, channels: tuple[str, ...]) -> str:
    if len(channels) == 1:
        return f"{task}."
    return "\n".join([f"{task} in each channel, in this form:", *(f"{name}: ..." for name in channels)])
