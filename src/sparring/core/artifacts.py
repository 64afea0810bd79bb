"""Artifacts: the subjects of episodes (topics, questions), and the stores that keep them."""

import math
import random
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from sparring.core.seeds import random_state, set_random_state


@dataclass
class Artifact:
    """The subject of an episode: JSON-able ``data``, with a ``weight`` (0 or more) for weighted sampling."""

    data: Any
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    weight: float = 1.0
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise ValueError(f"an artifact's weight must be 0 or more, not {self.weight}")


class ArtifactStore:
    """Keeps artifacts in memory, oldest first, and draws from them. Above ``max_size`` the oldest is
    dropped."""

    def __init__(self, max_size: int | None = None, seed: int = 0) -> None:
        if max_size is not None and max_size < 1:
            raise ValueError(f"max_size must be 1 or more, not {max_size}")
        self.max_size = max_size
        self._artifacts: dict[str, Artifact] = {}
        self._rng = random.Random(seed)

    def add(self, artifact: Artifact) -> None:
        """Keep ``artifact``. It replaces one with the same id and counts as the newest."""
        self._artifacts.pop(artifact.id, None)
        self._artifacts[artifact.id] = artifact
        self._drop_oldest()

    def remove(self, artifact_id: str) -> None:
        """Keep the artifact of this id no longer."""
        del self._artifacts[artifact_id]

    def _drop_oldest(self) -> None:
        while self.max_size is not None and len(self._artifacts) > self.max_size:
            del self._artifacts[next(iter(self._artifacts))]

    def sample(self, k: int = 1, weighted: bool = False) -> list[Artifact]:
        """Draw ``k`` different artifacts in random order, or all of them if there are fewer.

        With ``weighted``, each draw is in proportion to the weights of the rest: the k largest u^(1/w) for
        uniform u (Efraimidis and Spirakis 2006), compared as log w - log(-log u), which neither overflows nor
        underflows. Weight 0 is then never drawn.
        """
        if k < 0:
            raise ValueError(f"k must be 0 or more, not {k}")
        artifacts = list(self._artifacts.values())
        if not weighted:
            return self._rng.sample(artifacts, min(k, len(artifacts)))
        keyed = [(math.log(one.weight) + self._gumbel(), one) for one in artifacts if one.weight > 0]
        keyed.sort(key=lambda pair: pair[0], reverse=True)
        return [one for _, one in keyed[:k]]

    def _gumbel(self) -> float:
        """-log(-log u) for uniform u, which must not be 0."""
        return -math.log(-math.log(self._rng.random() or 0.5))

    def sample_one(self, weighted: bool = False) -> Artifact | None:
        """Draw one artifact, or ``None`` from an empty store."""
        drawn = self.sample(1, weighted)
        return drawn[0] if drawn else None

    def sample_shared(self, count: int, each: int) -> list[Artifact]:
        """Draw the artifacts of ``count`` episodes, of which ``each`` share one; return them in turn."""
        drawn = self.sample(math.ceil(count / each))
        return [drawn[place % len(drawn)] for place in range(count)]

    def count(self) -> int:
        """How many artifacts are kept."""
        return len(self._artifacts)

    def get(self, artifact_id: str) -> Artifact | None:
        """The artifact of this id, if it is kept."""
        return self._artifacts.get(artifact_id)

    def all(self) -> list[Artifact]:
        """Everything kept, oldest first."""
        return list(self._artifacts.values())

    def state_dict(self) -> dict[str, Any]:
        """Contents and generator, JSON-able."""
        artifacts = [asdict(one) for one in self._artifacts.values()]
        return {"artifacts": artifacts, "random": random_state(self._rng)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`, within this store's bound."""
        self._artifacts = {one["id"]: Artifact(**one) for one in state["artifacts"]}
        self._drop_oldest()
        set_random_state(self._rng, state["random"])


def data_of(artifact: Any) -> Any:
    """Return an artifact's data, and anything else unchanged."""
    return artifact.data if isinstance(artifact, Artifact) else artifact
