"""What the SDK lists and looks up: models, weights, sessions."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparring.engine.server_errors import ApiError
from sparring.finetune.jobs.records import ServedBase
from sparring.finetune.tinker.store import (
    MODELS,
    SAMPLERS,
    SESSIONS,
    WEIGHTS,
    ModelFiles,
    SavedWeights,
    Store,
)
from sparring.learn.policy import LoraSettings

MOST = 1000
"""The longest list that is returned at once."""
Found = dict[str, Any]


class Listings:
    """The models and weights of a store; ``base`` is their base model."""

    def __init__(self, store: Store, base: ServedBase) -> None:
        self.store = store
        self.base = base

    def info(self, model_id: str) -> Found:
        """Return what a client needs to know of a model. Raises ApiError: there is none."""
        record = self.store.model(model_id).record()
        data = {"model_name": self.base.name, "tokenizer_id": _anywhere(self.base.path)}
        lora = {"is_lora": True, "lora_rank": record.rank}
        names = {"model_id": model_id, "model_name": self.base.name}
        return {"type": "get_info", "model_data": data, **names, **lora}

    def weights_info(self, weights: SavedWeights) -> Found:
        """Return what a client needs to know of weights. Raises ApiError: there are none."""
        lora = LoraSettings.read(self.store.weights(weights))
        return {"base_model": self.base.name, "is_lora": True, "lora_rank": lora.lora_rank}

    def sampler(self, sampler_id: str) -> Found:
        """Return what a sampling session draws from. Raises ApiError: there is none."""
        path = self.store.sampler(sampler_id).model_path
        return {"sampler_id": sampler_id, "base_model": self.base.name, "model_path": path}

    def runs(self, limit: int, offset: int) -> Found:
        """Return some of the models, the newest first."""
        names = self.store.names(MODELS)[::-1]
        runs = [self.run(name) for name in _some(names, limit, offset)]
        return {"training_runs": runs, "cursor": _cursor(limit, offset, len(names))}

    def run(self, model_id: str) -> Found:
        """Return a model. Raises ApiError: there is none."""
        files = self.store.model(model_id)
        record, listed = files.record(), self.checkpoints(model_id)
        newest: Found = {one["checkpoint_type"]: one for one in sorted(listed, key=lambda one: one["time"])}
        return {
            "training_run_id": model_id,
            "base_model": self.base.name,
            "model_owner": "",
            "is_lora": True,
            "lora_rank": record.rank,
            "last_request_time": _time(files.directory),
            "last_checkpoint": newest.get("training"),
            "last_sampler_checkpoint": newest.get("sampler"),
            "user_metadata": record.user_metadata,
        }

    def checkpoints(self, model_id: str) -> list[Found]:
        """Return the weights of a model that have names. Raises ApiError: there is no model."""
        return _checkpoints(self.store.model(model_id))

    def all_checkpoints(self, limit: int, offset: int) -> Found:
        """Return some of the weights of all models, those of the newest model first."""
        found = [one for name in self.store.names(MODELS)[::-1] for one in self.checkpoints(name)]
        return {
            "checkpoints": _some(found, limit, offset),
            "cursor": _cursor(limit, offset, len(found)),
        }

    def delete(self, weights: SavedWeights) -> None:
        """Delete weights. Raises ApiError: there are none."""
        self.store.weights(weights)
        self.store.model(weights.model_id).delete(weights)

    def sessions(self, limit: int, offset: int) -> list[str]:
        """Return some of the sessions, the newest first."""
        return _some(self.store.names(SESSIONS)[::-1], limit, offset)

    def session(self, session_id: str) -> Found:
        """Return a session. Raises ApiError: there is none."""
        record = self.store.session(session_id)
        models, samplers = (
            [one for one in self.store.names(kind) if one.startswith(f"{session_id}:")]
            for kind in (MODELS, SAMPLERS)
        )
        return {
            "training_run_ids": models,
            "sampler_ids": samplers,
            "user_metadata": record.user_metadata,
            "display_name": record.display_name,
        }


def _anywhere(model: str) -> str:
    """Return the name of a model, or its path from any directory."""
    return str(Path(model).absolute()) if Path(model).is_dir() else model


def _checkpoints(files: ModelFiles) -> list[Found]:
    return [
        {
            "checkpoint_id": f"{weights.kind}/{weights.name}",
            "checkpoint_type": "training" if weights.kind == WEIGHTS else "sampler",
            "time": _time(path),
            "tinker_path": weights.path,
            "size_bytes": sum(one.stat().st_size for one in path.iterdir()),
        }
        for weights, path in files.listed()
    ]


def _some(found: list[Any], limit: int, offset: int) -> list[Any]:
    if not 0 <= limit <= MOST or offset < 0:
        raise ApiError(400, f"limit: give 0 to {MOST}, and an offset of 0 or more", param="limit")
    return found[offset : offset + limit]


def _cursor(limit: int, offset: int, total: int) -> Found:
    return {"limit": limit, "offset": offset, "total_count": total}


def _time(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat()
