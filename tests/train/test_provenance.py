from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from tests.fakes.tiny_training import SPEC, make_plan
from tpuctl.errors import CheckpointError
from tpuctl.train.provenance import Provenance, Written, check_model, provenance_of


def written(provenance: Provenance) -> Written:
    """As it comes back from the checkpoint's JSON."""
    plain = Provenance(**json.loads(json.dumps(asdict(provenance))))
    return Written(layout=1, tpuctl_version="0", devices=1, provenance=plain, key_types={}, eval_loss=None)


def test_model_with_layers_listed_is_the_same_model_after_a_way_through_json() -> None:
    plan = make_plan(model=replace(SPEC, sliding_window=8, local_layers=(0, 2)))
    check_model(written(provenance_of(plan)), provenance_of(plan), path="checkpoint")
    other = provenance_of(make_plan(model=replace(SPEC, sliding_window=8, local_layers=(0, 1))))
    with pytest.raises(CheckpointError, match=r"model.local_layers: \[0, 2\] in the checkpoint, \[0, 1\] in the plan"):
        check_model(written(provenance_of(plan)), other, path="checkpoint")


def test_field_the_checkpoint_does_not_know_stands_for_its_default() -> None:
    now = provenance_of(make_plan())
    before = replace(now, model={key: value for key, value in now.model.items() if key not in ("rope", "qk_norm")})
    check_model(written(before), now, path="checkpoint")
    with pytest.raises(CheckpointError, match=r"model\.qk_norm: False in the checkpoint, True in the plan"):
        check_model(written(before), provenance_of(make_plan(model=replace(SPEC, qk_norm=True))), path="checkpoint")


def test_run_that_goes_on_keeps_the_weights_it_began_with() -> None:
    began = replace(provenance_of(make_plan()), weights="abc", source="gs://bucket/model")
    after = provenance_of(make_plan(), job="job-2").going_on_from(began)
    assert (after.weights, after.source, after.job) == ("abc", "gs://bucket/model", "job-2")
