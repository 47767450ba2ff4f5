"""The HLO reader, on programs whose figures are known by hand."""

import jax
import jax.numpy as jnp
from jax import lax

from tpuctl.train.hlo import Shape, read_program

# What TPU's compiler writes, cut down: a loop of three whose limit stands in its condition, attributes that run over
# several lines, a product as a convolution over a padded window, an asynchronous gather, a fused reduce-scatter.
TPU_PROGRAM = """
HloModule jit_step

%all-reduce-scatter (input: bf16[64,256]) -> bf16[16,256] {
  %input = bf16[64,256]{1,0:T(8,128)(2,1)} parameter(0)
  %all-reduce.1 = bf16[64,256]{1,0:T(8,128)(2,1)} all-reduce(%input), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %dynamic-slice.1 = bf16[16,256]{1,0} dynamic-slice(%all-reduce.1, %c, %c), dynamic_slice_sizes={16,256}
}

%body (state: (s32[], bf16[64,256])) -> (s32[], bf16[64,256]) {
  %state = (s32[]{:T(128)}, bf16[64,256]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %x = bf16[2,8,1,16]{3,2,1,0} get-tuple-element(%state), index=1
  %w = bf16[4,16,32]{2,1,0} get-tuple-element(%state), index=2
  %splash_fwd.7 = bf16[64,256]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"a":{
}}, metadata={op_name="kernel"}
  %convolution.1 = bf16[2,8,4,32]{3,2,1,0} convolution(%x, %w), window={size=1x4 pad=0_0x3_3 rhs_reversal=0x1}, \
dim_labels=0b1f_1io->0b1f
  %fusion.1 = bf16[16,256]{1,0} fusion(%splash_fwd.7), kind=kCustom, calls=%all-reduce-scatter
  ROOT %tuple.1 = (s32[]{:T(128)}, bf16[64,256]{1,0}) tuple(%i, %splash_fwd.7)
}

%condition (state.1: (s32[], bf16[64,256])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, bf16[64,256]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %constant.1 = s32[]{:T(128)} constant(3)
  ROOT %compare.1 = pred[]{:T(512)} compare(%i.1, %constant.1), direction=LT
}

ENTRY %main (a: bf16[16,256]) -> bf16[64,256] {
  %a = bf16[16,256]{1,0} parameter(0)
  %all-gather-start.1 = (bf16[16,256]{1,0}, bf16[64,256]{1,0}) all-gather-start(%a), dimensions={0}
  %all-gather-done.1 = bf16[64,256]{1,0} all-gather-done(%all-gather-start.1)
  %tuple.0 = (s32[]{:T(128)}, /*index=1*/bf16[64,256]{1,0}) tuple(%zero, %all-gather-done.1)
  %while.1 = (s32[]{:T(128)}, bf16[64,256]{1,0}) while(%tuple.0), condition=%condition, body=%body
  ROOT %out = bf16[64,256]{1,0} get-tuple-element(%while.1), index=1
}
"""


def test_read_program_weights_a_loop_by_the_limit_in_its_condition():
    totals = read_program(TPU_PROGRAM)
    assert totals.kernels == {"splash_fwd": 3}
    scatter = totals.collectives["reduce-scatter"]
    assert (scatter.count, scatter.runs, scatter.nbytes) == (1, 3, 3 * 64 * 256 * 2)
    assert "all-reduce" not in totals.collectives


def test_read_program_counts_an_asynchronous_gather_once_at_its_whole_size():
    gather = read_program(TPU_PROGRAM).collectives["all-gather"]
    assert (gather.count, gather.runs, gather.nbytes, gather.largest_bytes) == (1, 1, 32768, 32768)


def test_read_program_counts_only_the_elements_a_padded_window_touches():
    # [16, 16] @ [16, 4 · 32], three times
    assert read_program(TPU_PROGRAM).matmul_flops == 3 * 2 * 16 * 16 * 128


def test_read_program_names_the_largest_arrays():
    assert read_program(TPU_PROGRAM).largest_arrays[0] == Shape(dtype="bf16", dims=(64, 256))


def test_read_program_counts_the_products_of_a_compiled_scan():
    def program(x, weights):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    shapes = (jax.ShapeDtypeStruct((4, 16), jnp.float32), jax.ShapeDtypeStruct((5, 16, 16), jnp.float32))
    text = jax.jit(program).lower(*shapes).compile().as_text()
    assert read_program(text).matmul_flops == 5 * 2 * 4 * 16 * 16
