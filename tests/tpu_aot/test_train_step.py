"""The very train step, compiled for TPU slices that are not there, and what the program then is.

Each test prints memory, work and communication of one device and step; run with ``-s`` to see them.
"""

import importlib.util
import math
from dataclasses import replace

import pytest

from tests.fakes.tiny_training import make_plan, make_slice
from tpuctl.modelspec import ExpertSpec, ModelSpec
from tpuctl.modelspec.adapters import TARGETS
from tpuctl.plan.budget import Workload, estimate
from tpuctl.plan.compile import Compiled, CompileError, compile_plan
from tpuctl.plan.schema import Plan
from tpuctl.plan.weights_schema import LoraPlan, WeightsPlan

pytestmark = [
    pytest.mark.tpu_aot,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="libtpu is not installed: nothing can compile for TPU (pip install libtpu)",
    ),
]

SPEC = ModelSpec(
    name="aot",
    vocab_size=16384,
    hidden_size=512,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=128,
    mlp_size=1408,
    tied_embedding=False,
)
LENGTH = 512
TOKENS = 1024
"""Tokens of one device and step."""


def plan_for(
    generation: str, topology: str, mesh: dict[str, int], *, hosts: int, model: ModelSpec = SPEC, **train: object
) -> Plan:
    devices = math.prod(mesh.values())
    shards = devices // mesh.get("tensor", 1)
    plan = make_plan(
        model=model,
        mesh=mesh,
        global_batch=TOKENS * shards // LENGTH,
        sequence_length=LENGTH,
        compute_dtype="bfloat16",
        **train,
    )
    return replace(plan, slice=make_slice(generation, topology, hosts=hosts, chips=devices))


def parameters() -> int:
    embeddings = 2 * SPEC.vocab_size * SPEC.hidden_size
    norms = (2 * SPEC.num_layers + 1) * SPEC.hidden_size
    return embeddings + norms + SPEC.num_layers * sum(layer_matrices().values())


def layer_matrices() -> dict[str, int]:
    heads, kv_heads = SPEC.num_heads * SPEC.head_dim, SPEC.num_kv_heads * SPEC.head_dim
    sizes = {"query": heads, "key": kv_heads, "value": kv_heads, "out": heads}
    sizes |= dict.fromkeys(("gate", "up", "down"), SPEC.mlp_size)
    return {name: SPEC.hidden_size * size for name, size in sizes.items()}


def hand_counted_flops() -> int:
    """Matrix products of one device under full rematerialisation: forward, forward again (but for the last product,
    whose result nothing needs), two for the gradients; the head's logits are made once."""
    layer = layer_matrices()
    in_layers = SPEC.num_layers * (8 * sum(layer.values()) - 2 * layer["down"])
    return TOKENS * (in_layers + 6 * SPEC.hidden_size * SPEC.vocab_size)


def show(name: str, compiled: Compiled) -> None:
    hbm = compiled.hbm
    print(f"\n{name}: {compiled.devices} devices, compiled in {compiled.seconds:.0f} s; per device and step:")
    print(
        f"  HBM MiB: arguments {hbm.argument >> 20}, temporary {hbm.temp >> 20}, code {hbm.generated_code >> 20}, "
        f"aliased {hbm.alias >> 20}, peak {hbm.peak >> 20}"
    )
    print(f"  matrix products: {compiled.matmul_flops / 1e9:.1f} GFLOP; kernels: {compiled.kernels}")
    for kind, use in sorted(compiled.collectives.items()):
        print(f"  {kind:18} ×{use.runs:<3} {use.nbytes / 1e6:8.2f} MB, largest array {use.largest_bytes / 1e6:.3f} MB")


def assert_gradients_are_reduce_scattered(compiled: Compiled, *, tensor: int) -> None:
    smallest_weight = 2 * min(layer_matrices().values()) // tensor
    assert compiled.collectives["all-reduce"].largest_bytes < smallest_weight / 16
    # Every weight but the embedding, whose gradient is born in its shard, in bf16.
    scattered = SPEC.num_layers * sum(layer_matrices().values()) + SPEC.hidden_size * SPEC.vocab_size
    assert compiled.collectives["reduce-scatter"].nbytes >= 2 * scattered / tensor


def assert_no_full_logits(compiled: Compiled, *, tensor: int) -> None:
    full = TOKENS * SPEC.vocab_size // tensor
    for dtype, dims in compiled.largest_arrays:
        elements = 1
        for size in dims:
            elements *= size
        weight = dims in ((SPEC.hidden_size, SPEC.vocab_size // tensor), (SPEC.vocab_size // tensor, SPEC.hidden_size))
        assert weight or elements < full, f"{dtype}{list(dims)} is as large as all logits"


def assert_state_is_donated(compiled: Compiled) -> None:
    state = 12 * parameters() / compiled.devices  # f32 weights and two moments
    assert state <= compiled.hbm.alias <= compiled.hbm.argument <= 1.1 * state
    assert compiled.hbm.alias >= 0.99 * compiled.hbm.output


def test_train_step_for_v6e_4x4_reduce_scatters_over_both_rings_of_the_torus():
    compiled = compile_plan(plan_for("v6e", "4x4", {"fsdp": 16}, hosts=4))
    show("v6e 4x4, fsdp 16", compiled)
    assert_gradients_are_reduce_scattered(compiled, tensor=1)
    assert_no_full_logits(compiled, tensor=1)
    assert_state_is_donated(compiled)
    assert compiled.matmul_flops == pytest.approx(hand_counted_flops(), rel=0.01)
    assert compiled.kernels["splash_mha_fwd_segmented_residuals"] == 2 * SPEC.num_layers


def test_train_step_for_v5p_2x2x2_with_tensor_parallel_layers():
    compiled = compile_plan(plan_for("v5p", "2x2x2", {"fsdp": 4, "tensor": 2}, hosts=2, remat="attention"))
    show("v5p 2x2x2, fsdp 4 × tensor 2", compiled)
    assert_gradients_are_reduce_scattered(compiled, tensor=2)
    assert_no_full_logits(compiled, tensor=2)
    assert_state_is_donated(compiled)
    assert compiled.matmul_flops == pytest.approx(hand_counted_flops() / 2, rel=0.01)
    # Attention's result is kept: its forward kernel does not run again.
    assert compiled.kernels["splash_mha_fwd_segmented_residuals"] == SPEC.num_layers


def test_train_step_of_local_and_global_layers_has_one_kernel_for_both():
    model = replace(
        SPEC,
        num_layers=4,
        num_kv_heads=1,
        qk_norm=True,
        norm_plus_one=True,
        sandwich_norms=True,
        attention_softcap=50.0,
        logits_softcap=30.0,
        sliding_window=256,
        local_layers=(0, 1, 3),
        local_rope_theta=1e4,
    )
    compiled = compile_plan(plan_for("v6e", "2x2", {"fsdp": 2, "tensor": 2}, hosts=1, model=model, remat="attention"))
    show("v6e 2x2, fsdp 2 × tensor 2, local and global layers", compiled)
    # Once each: what both kinds keep for the backward pass is the same, so attention's result need not be made again.
    assert compiled.kernels["splash_mha_fwd_segmented_residuals"] == model.num_layers
    backward = [count for name, count in compiled.kernels.items() if name != "splash_mha_fwd_segmented_residuals"]
    assert backward == [model.num_layers] * 2


def test_train_step_of_experts_does_the_work_of_the_chosen_ones():
    experts = ExpertSpec(num_experts=8, experts_per_token=2, mlp_size=512)
    model = replace(SPEC, experts=experts)
    compiled = compile_plan(plan_for("v6e", "2x2", {"fsdp": 4}, hosts=1, model=model))
    show("v6e 2x2, fsdp 4, 2 of 8 experts", compiled)
    # Six products of groups in forward and again in the backward pass, three for the gradients of what comes in.
    assert compiled.kernels["gmm"] == model.num_layers * 9
    assert compiled.kernels["tgmm"] == model.num_layers * 3
    # All other products are those of attention, head and router: no expert is multiplied with what is not routed to it.
    attention = sum(size for name, size in layer_matrices().items() if name in ("query", "key", "value", "out"))
    router = SPEC.hidden_size * experts.num_experts
    others = TOKENS * (SPEC.num_layers * 8 * (attention + router) + 6 * SPEC.hidden_size * SPEC.vocab_size)
    assert compiled.matmul_flops == pytest.approx(others, rel=0.02)
    matrix = SPEC.hidden_size * experts.mlp_size
    # Gathered and reduce-scattered like any weight: no gradient of all experts is summed whole.
    assert compiled.collectives["all-reduce"].largest_bytes < 2 * experts.num_experts * matrix / 16
    scattered = 3 * model.num_layers * experts.num_experts * matrix
    assert compiled.collectives["reduce-scatter"].nbytes >= 2 * scattered


def test_train_step_of_dealt_experts_gathers_tokens_in_place_of_the_others_experts():
    experts = ExpertSpec(num_experts=8, experts_per_token=2, mlp_size=512)
    model = replace(SPEC, experts=experts)
    gathered = compile_plan(plan_for("v6e", "2x2", {"fsdp": 4}, hosts=1, model=model))
    dealt = compile_plan(plan_for("v6e", "2x2", {"fsdp": 2, "expert": 2}, hosts=1, model=model))
    show("v6e 2x2, fsdp 2 × expert 2, 2 of 8 experts", dealt)
    assert dealt.kernels["gmm"] > 0
    assert dealt.kernels["tgmm"] > 0
    here, matrix = experts.num_experts // 2, SPEC.hidden_size * experts.mlp_size
    # In bf16: weights before the forward and the backward pass, tokens of both devices also before the forward pass
    # that is made again.
    weights = 2 * 2 * model.num_layers * 3 * here * matrix
    tokens = 3 * 2 * model.num_layers * 2 * TOKENS * SPEC.hidden_size
    saved = gathered.collectives["all-gather"].nbytes - dealt.collectives["all-gather"].nbytes
    assert saved == pytest.approx(weights - tokens, rel=0.05)
    assert dealt.collectives["all-reduce"].largest_bytes < 2 * here * matrix / 16
    assert dealt.collectives["reduce-scatter"].nbytes >= 2 * 3 * model.num_layers * here * matrix
    assert dealt.hbm.argument == pytest.approx(gathered.hbm.argument, rel=0.01)
    assert dealt.hbm.alias >= 0.99 * dealt.hbm.output


@pytest.mark.slow
def test_train_step_for_two_v4_slices_with_microbatches():
    plan = plan_for("v4", "2x2x1", {"slice": 2, "data": 2, "fsdp": 2}, hosts=1, microbatches=2)
    plan = replace(plan, slice=replace(plan.slice, slices=2, chips=4, chips_per_host=4))
    compiled = compile_plan(plan)
    show("2 × v4 2x2x1, slice 2 × data 2 × fsdp 2, two microbatches", compiled)
    # Over slices only shards are summed, a fourth of each weight, in f32 as accumulated.
    assert compiled.collectives["all-reduce"].largest_bytes <= 4 * SPEC.hidden_size * SPEC.vocab_size / 4
    assert compiled.matmul_flops == pytest.approx(hand_counted_flops(), rel=0.01)


def test_train_step_of_adapters_holds_frozen_weights_in_bfloat16_and_moments_of_adapters_only():
    lora = LoraPlan(rank=16, alpha=32.0, targets=tuple(TARGETS), dropout=0.0, adapter=None)
    whole = plan_for("v6e", "2x2", {"fsdp": 4}, hosts=1)
    weights = WeightsPlan(uri="/nowhere", family="llama")
    plan = replace(whole, lora=lora, weights=weights)
    compiled = compile_plan(plan)
    show("v6e 2x2, fsdp 4, adapters of rank 16", compiled)
    work = Workload(model=SPEC, mesh=plan.mesh, train=plan.train, hbm_bytes=32 << 30, lora=lora)
    adapters, budget = work.adapter_parameters, estimate(work, plan.train.remat)
    # Weights once, in bf16, a fourth on each device; the adapters whole, in f32 and with two moments.
    state = 2 * parameters() // 4 + 12 * adapters
    assert state <= compiled.hbm.argument <= 1.05 * state
    assert compiled.hbm.alias >= 0.99 * compiled.hbm.output
    assert budget.trained == adapters
    assert budget.state_bytes == pytest.approx(compiled.hbm.argument, rel=0.05)
    # Nothing of a frozen weight's gradient: none is made, and none sent.
    assert "reduce-scatter" not in compiled.collectives
    assert compiled.hbm.peak < budget.needed_bytes


def test_compile_plan_that_does_not_fit_the_slice_says_why():
    plan = plan_for("v6e", "2x2", {"fsdp": 8}, hosts=1)
    with pytest.raises(CompileError, match="has 8 devices, but there are 4"):
        compile_plan(plan)
