"""What is read of an optimized program: loops, pieces of arrays, what lies on the chip, branches."""

from __future__ import annotations

from tests.tpu_aot.hbm import moved

PROGRAM = """HloModule m

%cut (p0: bf16[4,64,32], p1: s32[]) -> bf16[1,64,32] {
  %p0 = bf16[4,64,32]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  ROOT %piece = bf16[1,64,32]{2,1,0} dynamic-slice(%p0, %p1), dynamic_slice_sizes={1,64,32}
}

%put (q0: f8e4m3fn[100,128], q1: f8e4m3fn[2,128], q2: s32[2]) -> f8e4m3fn[100,128] {
  %q0 = f8e4m3fn[100,128]{1,0} parameter(0)
  %q1 = f8e4m3fn[2,128]{1,0} parameter(1)
  %q2 = s32[2]{0} parameter(2)
  ROOT %put.1 = f8e4m3fn[100,128]{1,0} scatter(%q0, %q2, %q1), to_apply=%last
}

%body (t: (s32[], bf16[4,64,32])) -> (s32[], bf16[4,64,32]) {
  %t = (s32[], bf16[4,64,32]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %stack = bf16[4,64,32]{2,1,0} get-tuple-element(%t), index=1
  %layer = bf16[1,64,32]{2,1,0:T(8,128)(2,1)S(1)} fusion(%stack, %i), calls=%cut, metadata={op_name="jit(run)/cut"}
  ROOT %next = (s32[], bf16[4,64,32]{2,1,0}) tuple(%i, %stack)
}

%condition (t.1: (s32[], bf16[4,64,32])) -> pred[] {
  %t.1 = (s32[], bf16[4,64,32]{2,1,0}) parameter(0)
  %end = s32[] constant(4)
  ROOT %less = pred[] compare(%i.1, %end), direction=LT
}

%dear (x: f32[1000]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  ROOT %copied = f32[1000]{0} copy(%x)
}

%cheap (y: f32[1000]) -> f32[1000] {
  ROOT %y = f32[1000]{0} parameter(0)
}

ENTRY %main (a: bf16[4,64,32], b: f8e4m3fn[100,128], c: f8e4m3fn[2,128], d: s32[2], e: f32[1000]) -> f32[] {
  %a = bf16[4,64,32]{2,1,0} parameter(0)
  %b = f8e4m3fn[100,128]{1,0} parameter(1)
  %c = f8e4m3fn[2,128]{1,0} parameter(2)
  %d = s32[2]{0} parameter(3)
  %e = f32[1000]{0} parameter(4)
  %start = (s32[], bf16[4,64,32]{2,1,0}) tuple(%zero, %a)
  %loop = (s32[], bf16[4,64,32]{2,1,0}) while(%start), condition=%condition, body=%body
  %written = f8e4m3fn[100,128]{1,0} fusion(%b, %c, %d), kind=kLoop, calls=%put
  %fetch = (f32[1000]{0:S(1)}, f32[1000]{0}, u32[]{:S(2)}) copy-start(%e)
  %fetched = f32[1000]{0:S(1)} copy-done(%fetch)
  %chosen = f32[1000]{0} conditional(%flag, %e, %e), branch_computations={%dear, %cheap}
  ROOT %done = f32[] constant(0)
}
"""


def test_each_piece_counts_as_often_as_it_is_moved() -> None:
    found = {item.name: item for item in moved(PROGRAM, pages=10**6)}
    assert {name: item.nbytes for name, item in found.items()} == {
        "layer": 4 * 64 * 32 * 2,  # once a layer, read only: it is made on the chip
        "written": 2 * 128 + 2 * 128 + 2 * 4,  # what is put in, and where: read and written
        "fetch": 4000,
    }
    assert found["layer"].of == "jit(run)/cut"
