"""An estimate of HBM per device, made before anything is compiled: whether a plan can fit, and what to turn.

Arithmetic, not a measurement: the compiler fuses, pads and schedules. It was held against steps compiled for v6e (see
the tests) and is meant to refuse what can't fit and to name the large part; compilation has the last word.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.modelspec import ModelSpec, num_layer_parameters, num_parameters
from tpuctl.modelspec.adapters import adapter_parameters
from tpuctl.plan.schema import MeshPlan
from tpuctl.plan.train_schema import BudgetPlan, RematPolicy, TrainPlan
from tpuctl.plan.weights_schema import LoraPlan
from tpuctl.recipe.schema import TrainingRecipe
from tpuctl.recipe.settings import keys_of

# Cheapest in time first; each keeps less in memory than the one before.
POLICIES: tuple[RematPolicy, ...] = ("none", "dots", "attention", "full")

# A policy chosen for the user leaves this much of HBM to the compiler.
_COMFORT = 0.85
_F32 = 4
_STATE_BYTES = 3 * _F32  # weights and two Adam moments
_CHUNK_TOKENS = 2048
_CHUNK_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What decides how much memory a step takes."""

    model: ModelSpec
    mesh: MeshPlan
    train: TrainPlan
    hbm_bytes: int
    lora: LoraPlan | None = None

    @property
    def weight_shards(self) -> int:
        """Parts the weights and optimizer state are split into; slices hold copies."""
        return self.mesh.data * self.mesh.fsdp * self.mesh.expert * self.mesh.tensor

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on one device, before ``tensor`` splits them."""
        rows = self.train.global_batch // (self.mesh.batch_shards * self.train.microbatches)
        return rows * self.train.sequence_length

    @property
    def value_bytes(self) -> int:
        """Bytes of a number of the compute dtype."""
        return 2 if self.train.compute_dtype == "bfloat16" else _F32

    @property
    def adapter_parameters(self) -> int:
        """Weights of all adapters; every device holds them whole, but for what ``tensor`` splits."""
        if self.lora is None:
            return 0
        known = adapter_parameters(self.model, rank=self.lora.rank, targets=self.lora.targets)
        return sum(parameter.size for parameter in known.values())


def estimate(work: Workload, remat: RematPolicy) -> BudgetPlan:
    """Bytes per device for a step under a rematerialisation policy, at the moment that takes most.

    That moment is either in the loss, with the head and a chunk of logits, or in the backward pass through the
    layers, with their gradients. Both come on top of what the forward pass has kept; ``logit_bytes`` is what the
    first takes beyond the second.
    """
    weights = num_parameters(work.model)
    # Whole along ``data``: there weights are gathered once, and gradients summed at the end of the step only.
    shard = weights * work.mesh.data // work.weight_shards
    trained = shard if work.lora is None else work.adapter_parameters
    gradients, layer = trained * _F32, _layer_bytes(work)
    # A copy in the compute dtype; frozen weights are held in it, and copied only to be whole along ``data``.
    copied = trained + (shard if work.lora is not None and work.mesh.data > 1 else 0)
    return BudgetPlan(
        parameters=weights + work.adapter_parameters,
        trained=weights if work.lora is None else work.adapter_parameters,
        hbm_bytes=work.hbm_bytes,
        state_bytes=_state_bytes(work, weights // work.weight_shards),
        gradient_bytes=gradients + copied * work.value_bytes,
        activation_bytes=_saved_bytes(work, remat) + layer,
        logit_bytes=max(0, _loss_bytes(work) - gradients - layer),
    )


def _state_bytes(work: Workload, weights: int) -> int:
    """The training state, with so many of the model's weights on a device; frozen ones have no moments."""
    if work.lora is None:
        return weights * _STATE_BYTES
    return weights * work.value_bytes + work.adapter_parameters * _STATE_BYTES


def choose_remat(work: Workload) -> RematPolicy:
    """The policy that computes least again and still fits with room to spare; ``full`` where none does."""
    for policy in POLICIES:
        if estimate(work, policy).needed_bytes <= _COMFORT * work.hbm_bytes:
            return policy
    return "full"


def shortage_hint(work: Workload, budget: BudgetPlan) -> str:
    """What to turn, most promising first, when a plan does not fit."""
    parts = {"activations": budget.activation_bytes + budget.logit_bytes, "state": budget.state_bytes}
    microbatches = _most_microbatches(work)
    advice = []
    if parts["activations"] > parts["state"]:
        if work.train.remat != "full":
            advice.append('train.remat = "full"')
        if microbatches > work.train.microbatches:
            advice.append(f"train.microbatches = {microbatches}")
        advice.append("a shorter train.sequence_length")
        if work.mesh.tensor == 1:
            advice.append("mesh.tensor = 2 or more")
    return "try " + ", ".join([*advice, "a larger slice.topology", "a smaller model"])


def _most_microbatches(work: Workload) -> int:
    """The largest number of microbatches that divides each shard's rows and that a recipe may ask for."""
    rows = work.train.global_batch // work.mesh.batch_shards
    limit = keys_of(TrainingRecipe)["train.microbatches"].rules.maximum
    assert limit is not None, "the key has one"
    return max(parts for parts in range(1, min(rows, int(limit)) + 1) if rows % parts == 0)


def gib(size: float) -> str:
    """A number of bytes for people."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"


def _saved_bytes(work: Workload, remat: RematPolicy) -> int:
    """What the forward pass keeps for the backward pass, over all layers."""
    return work.model.num_layers * work.tokens * _kept_per_token(work, remat) // work.mesh.tensor


def _kept_per_token(work: Workload, remat: RematPolicy) -> int:
    """Bytes that one token leaves in one layer, over the whole ``tensor`` axis."""
    model, size = work.model, work.value_bytes
    # Devices more numerous than key heads hold one each.
    queries, keys = model.num_heads * model.head_dim, max(model.num_kv_heads, work.mesh.tensor) * model.head_dim
    kept = model.hidden_size * size
    if remat == "full":
        return kept
    kept += queries * size
    if remat == "attention":
        return kept
    inner = _inner_per_token(work)
    kept += (queries + 2 * keys + 2 * model.hidden_size + 2 * inner) * size
    if remat == "dots":
        return kept
    turned = (queries + keys) * size  # queries and keys after rotary embedding
    return kept + turned + 2 * inner * size + 4 * model.hidden_size * _F32


def _inner_per_token(work: Workload) -> int:
    """Width of the MLP that a token goes through; with experts of all that it is routed to, and of its copies."""
    model, routed = work.model, 0
    if model.experts is not None and work.mesh.expert == 1:  # of experts dealt out nothing is kept
        routed = model.experts.experts_per_token * (model.experts.mlp_size + model.hidden_size)
    return max(routed, model.mlp_size if model.mlp_layers else 0)


def _layer_bytes(work: Workload) -> int:
    """One layer in the backward pass: its gathered weights, their gradient and everything computed again."""
    model, mesh = work.model, work.mesh
    dealt = 0 if model.experts is None else 3 * model.experts.num_experts * model.experts.mlp_size * model.hidden_size
    weights = (num_layer_parameters(model) - dealt + dealt // mesh.expert) // mesh.tensor
    return (
        weights * (work.value_bytes + _gradient_value_bytes(work))
        + work.tokens * _kept_per_token(work, "none") // mesh.tensor
        + _dealt_bytes(work)
    )


def _dealt_bytes(work: Workload) -> int:
    """Tokens of all devices that share experts, their mixtures and gradients, and a chunk of half their own."""
    experts = work.model.experts
    if experts is None or work.mesh.expert == 1:
        return 0
    gathered = work.mesh.expert * work.model.hidden_size * (work.value_bytes + 2 * _F32)
    width = 2 * work.model.hidden_size + 3 * experts.mlp_size // work.mesh.tensor
    chunk = experts.experts_per_token * width * (work.value_bytes + _F32) // 2
    return work.tokens * (gathered + chunk)


def _gradient_value_bytes(work: Workload) -> int:
    """Bytes of the gradient of one of the model's weights; frozen ones have none."""
    return _F32 if work.lora is None else 0


def _loss_bytes(work: Workload) -> int:
    """The gathered head, its gradient, one chunk of logits with its gradient, and the gradient of the hidden states."""
    vocab = -(-work.model.vocab_size // work.mesh.tensor)
    chunk = max(1, min(_CHUNK_TOKENS, _CHUNK_BYTES // (_F32 * vocab), work.tokens // 4))
    head = vocab * work.model.hidden_size
    head_bytes = head * (work.value_bytes + _gradient_value_bytes(work))
    return 2 * chunk * vocab * _F32 + head_bytes + work.tokens * work.model.hidden_size * _F32
