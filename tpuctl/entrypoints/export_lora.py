"""A run's adapters on their way out: merged into the weights they were trained beside, or as PEFT keeps them."""

from __future__ import annotations

import jax
import numpy as np

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.errors import CheckpointError
from tpuctl.mesh import create_mesh, replicated
from tpuctl.model_folder import WeightFiles, fingerprint, open_weights
from tpuctl.modelspec.adapters import BACK, TARGETS, adapter_path
from tpuctl.nn.peft import Adapted, write_adapter
from tpuctl.nn.weights_fit import fit
from tpuctl.nn.weights_reading import Reader
from tpuctl.nn.weights_writing import WrittenWeights
from tpuctl.plan.schema import MeshPlan, TrainingPlan
from tpuctl.train.checkpoint_arrays import CheckpointArrays


class MergedLeaves:
    """The weights of a run with adapters, leaf by leaf: those of its model folder, with the adapters' share added."""

    def __init__(self, plan: TrainingPlan, arrays: CheckpointArrays) -> None:
        """Open the model folder.

        Raises:
            WeightsError: it does not hold the plan's model.
            CheckpointError: its weights are not those the adapters were trained beside.
        """
        assert plan.weights is not None, "adapters are trained beside the weights of a folder"
        assert plan.lora is not None, "the run has adapters"
        source = model_folder(plan.weights.uri)
        files = open_weights(source)
        check_beside(files, arrays, named=plan.weights.uri)
        self._lora, self._arrays = plan.lora, arrays
        self._leaves = fit(files, plan.model, family=plan.weights.family)
        self._reader = Reader(source)
        alone = MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=1)
        self._place = replicated(create_mesh(alone, devices=jax.devices()[:1]))
        self._targets = {f"layers/{TARGETS[target]}": target for target in plan.lora.targets}

    def read(self, path: str) -> np.ndarray:
        """One parameter whole, f32."""
        weight = np.asarray(self._reader.read(self._leaves[path], self._place, np.dtype(np.float32)))
        target = self._targets.get(path)
        return weight if target is None else weight + self._share(target).reshape(weight.shape)

    def close(self) -> None:
        """Let go of the folder."""
        self._reader.close()

    def _share(self, target: str) -> np.ndarray:
        """What an adapter amounts to as a change of its weight, the residual stream first: [layers, d, rest]."""
        a, b = (self._arrays.read(f"params/{adapter_path(target)}/{factor}") for factor in ("a", "b"))
        residual, other = (b, a) if target in BACK else (a, b)
        flat = other.reshape(*other.shape[:2], -1)
        change: np.ndarray = np.float32(self._lora.scale) * np.einsum("lrd,lre->lde", residual, flat)
        return change


def check_beside(files: WeightFiles, arrays: CheckpointArrays, *, named: str) -> None:
    """Hold the weights of a folder, ``named`` so, against those that a checkpoint's adapters were trained beside.

    Raises:
        CheckpointError: they are others.
    """
    trained_beside = arrays.written.provenance.weights
    if trained_beside and fingerprint(files) != trained_beside:
        raise CheckpointError(
            f"the weights in {named} are not those that {arrays.path} was trained beside",
            hint="put them back, or export the adapters alone with --format peft",
        )


def write_peft(plan: TrainingPlan, arrays: CheckpointArrays, folder: str) -> WrittenWeights:
    """Write the adapters alone, as PEFT does.

    Raises:
        StorageError: the folder can't be written to.
    """
    assert plan.weights is not None, "adapters are trained beside the weights of a folder"
    assert plan.lora is not None, "the run has adapters"
    adapted = Adapted(spec=plan.model, family=plan.weights.family, lora=plan.lora)
    file = write_adapter(adapted, folder, base=plan.weights.uri, read=lambda path: arrays.read(f"params/{path}"))
    return WrittenWeights(
        files=(file.uri.rpartition("/")[2],),
        tensors=len(file.tensors),
        num_bytes=sum(tensor.num_bytes for tensor in file.tensors.values()),
    )
