"""What one update of several policies reports."""

import asyncio
from dataclasses import replace

import pytest

from policy_learners import RECORDS, make_learners, make_policy
from sparring.run.learners import BatchOf
from sparring.run.local_learners import LocalLearners
from sparring.run.run_directory import RunDirectory

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # plain models


def test_shares_of_staleness_are_of_the_records_of_all_policies(tmp_path):
    model = make_policy("llama")
    learners = LocalLearners(make_learners(model), RunDirectory.create(tmp_path / "run"), "tiny")

    async def updated():
        await learners.update(1, BatchOf({"proposer": RECORDS["proposer"]}), dict)
        newest, older = [replace(one, policy_version=1 - age) for age, one in enumerate(RECORDS["proposer"])]
        both = BatchOf({"proposer": [newest, older], "solver": RECORDS["solver"]})
        return await learners.update(2, both, dict)

    saved = asyncio.run(updated())
    assert saved.versions == {"proposer": 2, "solver": 1}
    shares = {name: share for name, share in saved.figures.items() if "staleness" in name}
    assert shares == {"overlap/staleness_0": 0.75, "overlap/staleness_1": 0.25}
