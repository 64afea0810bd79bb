"""A server of the training API that is killed again and again: every answer is that of one that was not."""

import multiprocessing
import random
import threading

import pytest

from openai_http import httpx2
from training_client import Client, Model, base_policy, drawn_of, serve_forever, serving, texts

KILLS = 50
LIMIT_SECONDS = 60


class Killed:
    """A server in a process of its own, which is forked again after each kill."""

    def __init__(self, directory):
        self.directory = directory
        self.policy = base_policy()  # loaded once: each process begins with a copy
        self.context = multiprocessing.get_context("fork")
        self.kills = 0
        self.start()

    def start(self):
        here, there = self.context.Pipe()
        self.process = self.context.Process(
            target=serve_forever, args=(self.directory, self.policy, there), daemon=True
        )
        self.process.start()
        assert here.poll(LIMIT_SECONDS), "the server did not start"
        self.url = here.recv()
        self.is_killed = False

    def kill(self):
        self.kills += 1
        self.is_killed = True
        self.process.kill()

    def revive(self):
        if self.is_killed:
            self.process.join(LIMIT_SECONDS)
            self.start()

    def get(self, path, **options):
        return httpx2.get(self.url + path, verify=False, **options)

    def post(self, path, **options):
        return httpx2.post(self.url + path, verify=False, **options)

    def until_answered(self, ask, delay):
        """Ask, also again after kills; with a delay, kill the server that many seconds later."""
        timer = None if delay is None else threading.Timer(delay, self.kill)
        if timer is not None:
            timer.start()
        try:
            return self._asked(ask)
        finally:
            if timer is not None:
                timer.join()
                self.revive()

    def _asked(self, ask):
        while True:
            try:
                return ask()
            except httpx2.TransportError:
                assert self.is_killed
                self.revive()


def requests_of(model, number):
    """The requests of one round, each of which can be sent again."""
    yield "forward_backward", lambda: model.gradients(texts()[number % 3 :])
    yield "forward_backward", lambda: model.gradients(texts()[:1], forward_only=True)
    yield "optim_step", model.step
    if number % 4 == 0:
        yield "save", lambda: model.call("save_weights", path=f"at-{number}")
    if number % 4 == 2:
        yield "load", lambda: model.call("load_weights", path=path_of(model, number - 2), optimizer=True)
    yield "sampler", lambda: model.call("save_weights_for_sampler", sampling_session_seq_id=number)


def path_of(model, number):
    return f"tinker://{model.id}/weights/at-{number}"


def play(client, rounds, answered):
    """All answers of some rounds, the last of which are samples; ``answered`` passes each request on."""
    model, found = answered(client.create), []
    for number in range(rounds):
        for kind, ask in requests_of(model, number):
            begin = model.seq_id

            def again(ask=ask, begin=begin):
                model.seq_id = begin
                return ask()

            found.append((kind, answered(again)))
    sampler = found[-1][1]["sampling_session_id"]
    drawn = [answered(lambda seq=seq: client.sample(sampler, [5, 6, 7], seq)) for seq in range(3)]
    return model, found, [drawn_of(one) for one in drawn]


def told(found, session):
    return [(kind, str(answer).replace(session, "")) for kind, answer in found]


@pytest.mark.slow
def test_a_server_killed_at_any_time_answers_as_one_that_was_not(tmp_path):
    generator, rounds = random.Random(1), 16
    server = Killed(tmp_path / "killed")
    client = Client(server)

    def answered(ask):
        wanted = server.kills < KILLS
        return server.until_answered(ask, generator.uniform(0, 0.08) if wanted else None)

    model, found, drawn = play(client, rounds, answered)
    assert server.kills == KILLS
    again = [client.retrieve(f"{model.id}/{number + 1}") for number in range(model.seq_id)]
    assert len(again) == len(found)
    server.process.kill()
    server.process.join()
    with serving(tmp_path / "quiet") as quiet:
        _, expected, expected_drawn = play(quiet, rounds, lambda ask: ask())
        assert told(found, client.session) == told(expected, quiet.session)
        assert drawn == expected_drawn
    with serving(tmp_path / "killed") as resumed:
        model = Model(Client(resumed.live, client.session), model.id, model.seq_id)
        assert isinstance(model.gradients(texts()), float)
