// Top-k of one row from the router's logits, by a warp: the largest logits, the lowest expert among equals.
#pragma once
#include "block.cuh"

// `v`: the lane's logits, of experts 32 q + lane.  `put(k, expert, weight)` for each chosen expert, k-th by id; `used`: bit `lane` of word
// q gets that of expert 32 q + lane.
template <typename Put>
__device__ __forceinline__ void route_row(const Model& p, const float (&v)[MAX_EXPERTS / 32], u32 lane, u32 (&used)[MAX_EXPERTS / 32], Put put) {
  float first = 0;
  u32 taken = 0;  // bit q: this lane's expert 32 q + lane is chosen
  constexpr u32 Q = MAX_EXPERTS / 32;
  static_assert(Q <= 8, "names of four bits in a word");
  u32 keys[Q], names = 0;  // the lane's, falling; of equals the lower expert first; 0: none.  names: q of each, four bits
#pragma unroll
  for (u32 q = 0; q < Q; ++q) {
    u32 bits = __float_as_uint(v[q]);
    keys[q] = q * 32 + lane >= p.experts ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u, names |= q << 4 * q;
  }
#pragma unroll
  for (u32 i = 1; i < Q; ++i)
#pragma unroll
    for (u32 j = 0; j + i < Q; ++j)  // neighbours
      if (keys[j] < keys[j + 1]) {
        u32 other = keys[j], n = (names >> 4 * j ^ names >> 4 * (j + 1)) & 15;
        keys[j] = keys[j + 1], keys[j + 1] = other, names ^= (n | n << 4) << 4 * j;
      }
#pragma unroll 1
  for (u32 k = 0; k < p.top_k; ++k) {
    u32 top = __reduce_max_sync(~0u, keys[0]), best = __ballot_sync(~0u, keys[0] == top), index = (names & 15) * 32 + lane;
    if (k == 0) first = __uint_as_float(top & 0x80000000u ? top & 0x7fffffffu : ~top);
    bool mine = best == 1u << lane;
    if (best & (best - 1)) mine = index == __reduce_min_sync(~0u, best >> lane & 1 ? index : ~0u);
    if (mine) {
      taken |= 1u << (names & 15), names >>= 4;
#pragma unroll
      for (u32 q = 0; q + 1 < Q; ++q) keys[q] = keys[q + 1];
      keys[Q - 1] = 0;
    }
  }
  float total = 0;  // of exponentials over the chosen, or over all experts
  if (p.router_kind) {
#pragma unroll
    for (u32 q = 0; q < MAX_EXPERTS / 32; ++q)
      if (q * 32 + lane < p.experts && (p.router_kind == 2 || taken >> q & 1)) total += __expf(v[q] - first);
    for (u32 o = 16; o; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
  }
  float weight[MAX_EXPERTS / 32], sum = 0;
#pragma unroll
  for (u32 q = 0; q < MAX_EXPERTS / 32; ++q) {
    weight[q] = taken >> q & 1 ? (p.router_kind ? __expf(v[q] - first) / total : 1.f / (1.f + __expf(-v[q]))) : 0.f;
    sum += weight[q];
  }
  if (p.renormalise) {
    for (u32 o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  } else {
    sum = 1;
  }
  u32 at = 0;
#pragma unroll
  for (u32 q = 0; q < MAX_EXPERTS / 32; ++q) {
    u32 mask = __ballot_sync(~0u, taken >> q & 1);
    if (taken >> q & 1) {
      u32 k = at + __popc(mask & ((1u << lane) - 1));
      put(k, q * 32 + lane, weight[q] / sum);
    }
    at += __popc(mask), used[q] |= mask;
  }
}

#if MK_ROWS > 1
// TOP_K: what every SM does for itself in the kernel for one row, as a task of a row.
__device__ __noinline__ void top_k_row(const Model& p, u32 row, u32 lane) {
  u32 used[MAX_EXPERTS / 32] = {};
  float v[MAX_EXPERTS / 32];
  const float* logits = (const float*)p.router_logits + row * p.experts;
#pragma unroll
  for (u32 q = 0; q < MAX_EXPERTS / 32; ++q) v[q] = q * 32 + lane < p.experts ? __ldcg(logits + q * 32 + lane) : NEG_INF;
  route_row(p, v, lane, used, [&](u32 k, u32 expert, float weight) {
    ((u32*)p.chosen)[row * MAX_TOP_K + k] = expert, ((float*)p.chosen_weight)[row * MAX_TOP_K + k] = weight;
  });
}
#endif
