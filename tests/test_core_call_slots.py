"""Call slots: never more than the limit, handed out in the order of requests, and never lost."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparring.core import InputError
from sparring.core.concurrency import CallSlots


async def settle():
    """Run everything that can run."""
    for _ in range(5):
        await asyncio.sleep(0)


class Callers:
    """Tasks that take a slot and keep it until they are told to release it."""

    def __init__(self, limit):
        self.slots = CallSlots(limit)
        self.inside = []
        self.tasks = []
        self.ends = []

    async def _call(self, number, end):
        await self.slots.acquire()
        self.inside.append(number)
        try:
            await end.wait()
        finally:
            self.inside.remove(number)
            self.slots.release()

    def start(self):
        self.ends.append(asyncio.Event())
        self.tasks.append(asyncio.create_task(self._call(len(self.tasks), self.ends[-1])))

    async def finish(self):
        for end in self.ends:
            end.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_first_come_first_served():
    callers = Callers(2)
    for _ in range(5):
        callers.start()
    await settle()
    assert callers.inside == [0, 1]
    callers.ends[0].set()
    await settle()
    assert callers.inside == [1, 2]
    await callers.finish()


def test_slots_belong_to_no_event_loop():
    slots, taken = CallSlots(1), []

    async def contend():
        async def take(name):
            await slots.acquire()
            taken.append(f"{name} in")
            await asyncio.sleep(0)
            taken.append(f"{name} out")
            slots.release()

        await asyncio.gather(take("a"), take("b"), take("c"))

    for _ in range(2):
        asyncio.run(contend())
        assert taken == ["a in", "a out", "b in", "b out", "c in", "c out"]
        taken.clear()


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_1_is_rejected(limit):
    with pytest.raises(InputError, match=r"concurrency.*Give 1 or more"):
        CallSlots(limit)


events = st.one_of(
    st.just(("start", 0)),
    st.tuples(st.sampled_from(["end", "cancel"]), st.integers(0, 9)),
    st.tuples(st.just("limit"), st.integers(1, 4)),
    st.just(("settle", 0)),
    st.just(("tick", 0)),
)
raised = [*[("start", 0)] * 4, ("settle", 0), ("limit", 3)]
cancelled_after_the_hand_over = [*[("start", 0)] * 3, ("settle", 0), ("end", 0), ("tick", 0), ("cancel", 1)]


@example(raised, 1)
@example(cancelled_after_the_hand_over, 1)
@given(st.lists(events, max_size=30), st.integers(1, 4))
def test_whatever_happens_the_limit_holds_and_no_slot_is_lost(happenings, limit):
    async def run():
        nonlocal limit
        callers, most = Callers(limit), limit
        for what, which in happenings:
            if what == "start":
                callers.start()
            elif what == "end" and which < len(callers.ends):
                callers.ends[which].set()
            elif what == "cancel" and which < len(callers.tasks):
                callers.tasks[which].cancel()
            elif what == "limit":
                limit = which
                callers.slots.set_limit(limit)
            elif what == "tick":
                await asyncio.sleep(0)
            elif what == "settle":
                await settle()
                most = max(limit, len(callers.inside))  # calls inside when the limit fell may stay
            most = max(most, limit)
            assert len(callers.inside) <= most
        await settle()
        waiting = [task for task in callers.tasks if not task.done()]
        assert len(callers.inside) >= min(limit, len(waiting)), "a slot is free and somebody waits"
        await callers.finish()
        assert callers.inside == []
        callers.slots.set_limit(2)
        for _ in range(3):
            callers.start()
        await settle()
        assert len(callers.inside) == 2, "all slots came back, and none twice"
        await callers.finish()

    asyncio.run(run())
