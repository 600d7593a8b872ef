"""Small HLO modules, written by hand in the forms that XLA writes, for the tests here."""

from transformer_jax.plan.hlo import Instruction, Module, parse

#: A loop of five iterations with an all-gather among two devices, then an all-reduce among four.
MODULE = """\
HloModule jit_small, is_scheduled=true, entry_computation_layout={(f32[8,4]{1,0})->f32[8,4]{1,0}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0:T(8,128)} parameter(0)
  ROOT %n = f32[8,4]{1,0:T(8,128)} negate(%p), backend_config={"estimated_cycles":"999999"}
}

%turn (t: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %t = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)S(1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  %x = f32[8,4]{1,0:T(8,128)S(1)} get-tuple-element(%t), index=1
  %y = f32[8,4]{1,0:T(8,128)} fusion(%x), calls=%fused, backend_config={"estimated_cycles":"200"}
  %g = f32[16,4]{1,0:T(8,128)} all-gather(%y), replica_groups=[4,2]<=[8], dimensions={0}
  ROOT %r = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)S(1)}) tuple(%i, %y)
}

%goes_on (t: (s32[], f32[8,4])) -> pred[] {
  %t = (s32[], f32[8,4]) parameter(0)
  %limit = s32[]{:T(128)} constant(5)
  %i = s32[] get-tuple-element(%t), index=0
  ROOT %more = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

ENTRY %main (w: f32[8,4]) -> f32[8,4] {
  %w = f32[8,4]{1,0:T(8,128)} parameter(0), metadata={op_name="state.params[\\'w\\']"}
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[], f32[8,4]{1,0}) tuple(%zero, %w)
  %loop = (s32[]{:T(128)}, /*index=1*/f32[8,4]{1,0}) while(%start), condition=%goes_on, body=%turn
  %v = f32[8,4]{1,0} get-tuple-element(%loop), index=1
  %both = (f32[8,4]{1,0}, bf16[10]{0}) all-reduce(%v, %v), replica_groups=mesh['d'=4,'t'=2] {'d'}
  ROOT %out = f32[8,4]{1,0} get-tuple-element(%both), index=0
}
"""

#: An all-to-all that runs asynchronously, and an all-reduce with a slice, fused.
INSIDE_COMPUTATIONS = """
%all-reduce-scatter.1 (p: f32[8]) -> f32[2] {
  %p = f32[8]{0} parameter(0)
  %r = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%s
  ROOT %d = f32[2]{0} dynamic-slice(%r), dynamic_slice_sizes={2}
}, execution_thread="main"
%wrapped (p: f32[8]) -> f32[8] {
  ROOT %t = f32[8]{0} all-to-all(%p), replica_groups={{0,1,2,3}}
}
ENTRY %main (p: f32[8]) -> f32[2] {
  %a = ((f32[8]), f32[8], u32[]) async-start(%p), calls=%wrapped
  %b = f32[8]{0} async-done(%a)
  ROOT %f = f32[2]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def instructions(*lines: str) -> tuple[Module, dict[str, Instruction]]:
    """A module of these lines, and its instructions by name."""
    text = "ENTRY %main (p: f32[2]) -> f32[2] {\n" + "\n".join(lines) + "\n}\n"
    module = parse(text)
    return module, {i.name: i for i in module.computations["main"]}


#: Splash attention forwards, four heads, as a TPU's compiler writes it: with JSON between lines.
SPLASH = """\
HloModule jit_f, is_scheduled=true

ENTRY %main (q: bf16[4,256,64]) -> bf16[4,256,64] {
  %next = s8[1,2,3]{2,1,0} constant({...})
  %q = bf16[4,256,64]{2,1,0:T(8,128)(2,1)} parameter(0)
  %k = bf16[2,384,64]{2,1,0:T(8,128)(2,1)} parameter(1)
  %splash_mha_fwd_segmented_residuals.1 = (f32[128,128]{1,0:T(8,128)}, bf16[4,256,64]{2,1,0}) \
custom-call(%next, %next, %q, %k, %k), custom_call_target="tpu_custom_call", \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 128, \\"q_layout\\": 1}"
}}, metadata={op_name="jit(f)/static_sparsity_splash/pallas_call" stack_frame_id=6}, \
backend_config={"custom_call_config":{"body":"TUzv=="}}
  ROOT %y = bf16[4,256,64]{2,1,0} get-tuple-element(%splash_mha_fwd_segmented_residuals.1), \
index=1, frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 128, \\"q_layout\\": 1}"
}}, metadata={op_name="jit(f)/static_sparsity_splash/pallas_call" stack_frame_id=6}
}
"""
