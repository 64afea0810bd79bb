"""Plans of prefix trees, drawn by Hypothesis."""

from hypothesis import strategies as st

from sparring.learn.trie import build_plan

token = st.integers(0, 2)


plans = st.lists(
    st.tuples(st.lists(token, min_size=1, max_size=8), st.lists(token, min_size=1, max_size=4)),
    min_size=1,
    max_size=8,
).map(lambda pairs: build_plan([prompt for prompt, _ in pairs], [completion for _, completion in pairs]))


windows = st.none() | st.integers(1, 14)
