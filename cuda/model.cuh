// The parameters as the kernel sees them: what a launch is told, and what the kernel was compiled for.  A kernel of one model has that
// model's sizes as constants, which hide the fields: its code is a tenth to a quarter shorter, and a step of few rows 1 to 9 %
// (decisions/0013).  The one without MK_HIDDEN serves any model.
#pragma once
#include "mkviz.cuh"

struct Model : Params {
#ifdef MK_HIDDEN
  static constexpr u32 hidden = MK_HIDDEN, heads = MK_HEADS, vocab = MK_VOCAB;
#if MK_ROWS == 1  // as a constant, head_dim would make the kernel for eight rows spill,
  static constexpr u32 head_dim = MK_HEAD_DIM, rows = 1;
#endif
#if !MK_TRACE  // and kv_heads one with records
  static constexpr u32 kv_heads = MK_KV_HEADS;
#endif
  static constexpr u32 experts = MK_ROUTED_EXPERTS, top_k = MK_TOP_K, expert_k16 = MK_EXPERT_K16, shared_k16 = MK_SHARED_K16;
  static constexpr u32 parallel = MK_PARALLEL, centre = MK_CENTRE, interleaved = MK_INTERLEAVED, router_kind = MK_ROUTER_KIND;
  static constexpr u32 renormalise = MK_RENORMALISE, shared_average = MK_SHARED_AVERAGE;
#endif
};
