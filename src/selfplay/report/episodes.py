"""The sections of readable games or conversations: those of training, and those of evaluations."""

from collections import defaultdict
from html import escape

from selfplay.read.episodes import LoggedEpisode
from selfplay.read.evaluations import are_shares, match_title, matches_of, measures_of
from selfplay.read.numbers import counted
from selfplay.read.proofs import proof_of
from selfplay.read.rollouts import LoggedRollout, LoggedStep, Prompt
from selfplay.read.whole_run import Transcript, WholeRun
from selfplay.report.conversations import conversation_html
from selfplay.report.filter import CUT, FAILED, INVALID, OF_PROOFS, TURN_LIMIT, filter_html
from selfplay.report.games import game_html, rewards_of
from selfplay.report.pieces import Shared, Speaker, messages_html, versions_html
from selfplay.report.proofs import proof_html
from selfplay.report.tables import value_text


def training_html(run: WholeRun) -> str:
    """Return the section of episodes from the run's logs; empty without any."""
    if not run.episodes:
        return ""
    shared = _shared(run, run.episodes, is_evaluation=False)
    groups = []
    for step in dict.fromkeys(episode.step for episode in run.episodes):
        of_step = [episode for episode in run.episodes if episode.step == step]
        steps = [one for episode in of_step for rollout in episode.all_rollouts() for one in rollout.steps]
        versions = versions_html(one.policy_version for one in steps)
        shown = "".join(_card(run, one, shared, unfolded=one is run.episodes[0]) for one in of_step)
        title = f"Iteration {step}" if run.tuning is not None else f"Update {step}{versions}"
        groups.append(f'<div class="group"><h3>{title}</h3>{shown}</div>')
    return _section(run, _title(run), _choice_text(run), shared, groups)


def evaluation_html(run: WholeRun) -> str:
    """Return the section of episodes that evaluations logged; empty without any."""
    episodes = [one for transcript in run.transcripts for one in transcript.episodes]
    if not episodes:
        return ""
    shared = _shared(run, episodes, is_evaluation=True)
    groups = []
    for transcript in run.transcripts:
        shown = "".join(_card(run, one, shared, unfolded=False) for one in transcript.episodes)
        title = f": {match_title(transcript.env_id, transcript.opponent)}" * (not run.is_program)
        groups.append(
            f'<div class="group"><h3>After update {transcript.step}{escape(title)} '
            f'<span class="muted">{escape(_result_text(run, transcript))}</span></h3>{shown}</div>'
        )
    title = f"{_title(run)} of the first and the last evaluation"
    note = f"The first {_title(run).lower()} of each. The figures beside them count all."
    return _section(run, title, note, shared, groups)


def _title(run: WholeRun) -> str:
    if _has_proofs(run):
        return "Proofs"
    return "Conversations" if run.is_program else "Games"


def _has_proofs(run: WholeRun) -> bool:
    """Return whether the run plays interactive proofs."""
    read = [*run.episodes, *(one for transcript in run.transcripts for one in transcript.episodes)]
    return run.is_program and any(proof_of(one.rollout) is not None for one in read)


def _choice_text(run: WholeRun) -> str:
    """Return a sentence on the choice from the log."""
    shown, logged = len(run.episodes), counted(run.episodes_in_log, "episode" if run.is_program else "game")
    parts = ", each with its sub-episodes" if run.is_program and not _has_proofs(run) else ""
    if shown == run.episodes_in_log:
        return f"All of {logged} in the log{parts}."
    last = "iteration" if run.tuning is not None else "step"
    return f"{shown} of {logged} in the log{parts}, from the first, the middle and the last {last}."


def _result_text(run: WholeRun, transcript: Transcript) -> str:
    """Return what the evaluation measured, in words."""
    of_what = transcript.env_id, transcript.opponent
    won = [
        f"won {one.wins / one.games:.1%} of {one.games:,} games"
        for one in matches_of(run.evaluations).get(of_what, [])
        if one.step == transcript.step
    ]
    measured = [
        f"{name} {value_text(one, is_share=are_shares(measures))}"
        for name, measures in measures_of(run.evaluations).items()
        for one in measures
        if one.step == transcript.step
    ]
    return ", ".join(won[-1:] + measured)


def _section(run: WholeRun, title: str, note: str, shared: Shared, groups: list[str]) -> str:
    kinds = (CUT, FAILED) if run.is_program else (INVALID, CUT, TURN_LIMIT, FAILED)
    if _has_proofs(run):
        kinds = (*OF_PROOFS, *kinds)
    return (
        f'<section><h2>{title}</h2><p class="muted">{escape(note)}</p>{_beginnings_html(shared)}'
        f"{filter_html(kinds, shared.players)}{''.join(groups)}</section>"
    )


def _card(run: WholeRun, episode: LoggedEpisode, shared: Shared, *, unfolded: bool) -> str:
    proof = proof_of(episode.rollout) if run.is_program else None
    if proof is not None:
        return proof_html(episode, proof, shared, unfolded=unfolded)
    card = conversation_html if run.is_program else game_html
    return card(episode, shared, unfolded=unfolded)


def _shared(run: WholeRun, episodes: list[LoggedEpisode], *, is_evaluation: bool) -> Shared:
    prompts: defaultdict[Speaker, list[Prompt]] = defaultdict(list)
    for episode in episodes:
        for rollout in episode.all_rollouts():
            for step in rollout.steps:
                prompts[_speaker(run, rollout, step)].append(step.prompt)
    beginnings = {speaker: shared_beginning(several) for speaker, several in prompts.items()}
    if run.is_program:
        players = sorted({role for episode in episodes for role in episode.rollout.rewards})
    else:
        seats = {seat for episode in episodes for seat in rewards_of(episode.rollout)}
        players = sorted(seats, key=lambda seat: (len(seat), seat))
    return Shared(
        {role: index % 6 for index, role in enumerate(run.roles())},
        {speaker: beginning for speaker, beginning in beginnings.items() if beginning},
        players,
        is_evaluation,
    )


def _speaker(run: WholeRun, rollout: LoggedRollout, step: LoggedStep) -> Speaker:
    return (rollout.episode_type, step.role_id) if run.is_program else (rollout.env_id, f"seat {step.pid}")


def shared_beginning(prompts: list[Prompt]) -> Prompt:
    """Return the messages with which every prompt begins.

    A prompt's last message never counts, and a single prompt shares nothing.
    """
    if len(prompts) < 2:
        return []
    length = min(len(prompt) for prompt in prompts) - 1
    first = prompts[0]
    while length > 0 and any(prompt[:length] != first[:length] for prompt in prompts):
        length -= 1
    return first[: max(0, length)]


def _beginnings_html(shared: Shared) -> str:
    """Return each shared beginning once, folded, with its speakers."""
    speakers: list[tuple[str, Prompt, list[str]]] = []
    for (where, who), beginning in sorted(shared.beginnings.items(), key=lambda item: item[0]):
        for known_where, known, several in speakers:
            if known_where == where and known == beginning:
                several.append(who)
                break
        else:
            speakers.append((where, beginning, [who]))
    return "".join(
        f'<details class="fold shared"><summary>Shared beginning of every prompt of '
        f"{escape(' and '.join(several))} in {escape(where)} ({counted(len(beginning), 'message')})</summary>"
        f"{messages_html(beginning)}</details>"
        for where, beginning, several in speakers
    )
