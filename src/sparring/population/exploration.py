"""ExplorationTracker: measures the variety of recent games by the n-grams of their actions."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

# The key of the windows that count the games of all models.
ALL_MODELS = ""


class NgramWindow:
    """Counts the n-grams of the last ``window`` games.

    New games are counted only when a figure is requested; games that leave the window earlier never are.
    """

    def __init__(self, window: int, ngram_sizes: Sequence[int]) -> None:
        self.window = window
        self._counted: deque[tuple[str, ...]] = deque()
        self._waiting: deque[tuple[str, ...]] = deque(maxlen=window)
        self._counts: dict[int, Counter[tuple[str, ...]]] = {size: Counter() for size in ngram_sizes}
        self._totals = dict.fromkeys(ngram_sizes, 0)

    def add(self, actions: Sequence[str]) -> None:
        """Add a game; above ``window`` games the oldest is dropped."""
        self._waiting.append(tuple(actions))

    def games(self) -> list[tuple[str, ...]]:
        """Return the games in the window, oldest first."""
        self._count_waiting()
        return list(self._counted)

    def pct_unique(self, size: int) -> float | None:
        """Return the share of distinct n-grams of this size, in (0, 1]; ``None`` if there are no n-grams."""
        self._count_waiting()
        total = self._totals[size]
        return len(self._counts[size]) / total if total else None

    def _count_waiting(self) -> None:
        for _ in range(len(self._counted) + len(self._waiting) - self.window):
            self._forget(self._counted.popleft())
        for game in self._waiting:
            self._count(game)
        self._counted.extend(self._waiting)
        self._waiting.clear()

    def _count(self, game: tuple[str, ...]) -> None:
        for size, counts in self._counts.items():
            grams = _ngrams(game, size)
            counts.update(grams)
            self._totals[size] += len(grams)

    def _forget(self, game: tuple[str, ...]) -> None:
        for size, counts in self._counts.items():
            grams = _ngrams(game, size)
            self._totals[size] -= len(grams)
            for gram in grams:
                counts[gram] -= 1
                if not counts[gram]:
                    del counts[gram]


class ExplorationTracker:
    """Keeps n-gram windows for every environment, one for all games and one for those of each model.

    pct_unique = distinct n-grams / n-grams, over the last ``window`` games.

    Args:
        window: number of games in a window. Each window counts its own games; in UnstableBaselines all
            environments share one counter.
        ngram_sizes: sizes of the n-grams.
    """

    def __init__(self, window: int = 512, ngram_sizes: Sequence[int] = (1, 2, 3, 4)) -> None:
        self.window = window
        self.ngram_sizes = tuple(ngram_sizes)
        self._windows: dict[str, dict[str, NgramWindow]] = {ALL_MODELS: {}}

    def add_game(self, action_seq: Sequence[str], env_id: str, uids: Iterable[str]) -> None:
        """Add a game's actions (of all players, in order) to the windows of its environment and models."""
        for uid in (ALL_MODELS, *dict.fromkeys(uids)):
            self._window(uid, env_id).add(action_seq)

    def pct_unique(self, size: int, env_id: str, uid: str = ALL_MODELS) -> float | None:
        """Return the share of distinct n-grams of ``size``, or ``None`` if no game had one."""
        window = self._windows.get(uid, {}).get(env_id)
        return window.pct_unique(size) if window is not None else None

    def summary(self, uid: str = ALL_MODELS) -> dict[str, dict[str, float]]:
        """Return the known values of pct_unique by environment and name of the measure, for trackers."""
        summary: dict[str, dict[str, float]] = {}
        for env_id, window in self._windows.get(uid, {}).items():
            shares = {f"Pct. Unique Action {size}-gram": window.pct_unique(size) for size in self.ngram_sizes}
            summary[env_id] = {name: share for name, share in shares.items() if share is not None}
        return summary

    def diversity(self, uid: str) -> float | None:
        """Return the mean pct_unique of a model's games over environments and sizes, ``None`` if unknown."""
        shares = [share for sizes in self.summary(uid).values() for share in sizes.values()]
        return sum(shares) / len(shares) if shares else None

    def inherit(self, uid: str, predecessor: str) -> None:
        """Start a new checkpoint's windows as copies of its predecessor's."""
        for env_id, window in self._windows.get(predecessor, {}).items():
            for game in window.games():
                self._window(uid, env_id).add(game)

    def forget(self, uid: str) -> None:
        """Drop a model's windows."""
        self._windows.pop(uid, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the games in every window."""
        return {
            "windows": {
                uid: {env_id: [list(game) for game in window.games()] for env_id, window in windows.items()}
                for uid, windows in self._windows.items()
            }
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, replacing the current one."""
        self._windows = {ALL_MODELS: {}}
        for uid, environments in state["windows"].items():
            for env_id, games in environments.items():
                for game in games:
                    self._window(uid, env_id).add(game)

    def _window(self, uid: str, env_id: str) -> NgramWindow:
        windows = self._windows.setdefault(uid, {})
        if env_id not in windows:
            windows[env_id] = NgramWindow(self.window, self.ngram_sizes)
        return windows[env_id]


def _ngrams(actions: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    return [actions[start : start + size] for start in range(len(actions) - size + 1)]
