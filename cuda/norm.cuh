// Norm of a row by one warp, which does what three feeders do together for a step of one row, so that sums are added in the same order:
// of threads, then lanes, then warps.
#pragma once
#include "dense.cuh"

#if MK_ROWS == 8 && MK_BULK && !(defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200)
#define MK_HOLDS_ROW 1
#else
#define MK_HOLDS_ROW 0  // no registers to spare for it: each pass reads the row
#endif

template <bool WHOLE>
struct RowNorm {
  static constexpr u32 HELD = WHOLE ? 16 : 6;  // float4 a lane: all of a row that has no more, which is then read once; or at a time
  static_assert(WHOLE || HELD % FEEDERS == 0, "a float4's feeder is its number modulo theirs");
  const float4 *x, *weight;
  u32 n, lane;
  float4 v[HELD];

  __device__ __forceinline__ void load(u32 base) {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) v[i] = base + i * 32 + lane < n ? __ldcg(x + base + i * 32 + lane) : make_float4(0, 0, 0, 0);
  }

  template <typename Each>
  __device__ __forceinline__ void each(Each take) {
#pragma unroll 1
    for (u32 base = 0; base < (WHOLE ? 1 : n); base += HELD * 32) {
      if (!WHOLE) load(base);
#pragma unroll
      for (u32 i = 0; i < HELD; ++i)
        if (base + i * 32 + lane < n) take(base + i * 32 + lane, i % FEEDERS, v[i]);
    }
  }

  // Sum of x, or of the squares of x - mean.
  __device__ __forceinline__ float sum(bool squares, float mean) {
    float part[FEEDERS] = {}, all = 0;
    each([&](u32, u32 feeder, float4 u) {
      float4 d = make_float4(u.x - mean, u.y - mean, u.z - mean, u.w - mean);
      part[feeder] += squares ? sum_of_squares(d) : d.x + d.y + d.z + d.w;
    });
    for (u32 o = 16; o; o >>= 1)
#pragma unroll
      for (u32 f = 0; f < FEEDERS; ++f) part[f] += __shfl_xor_sync(~0u, part[f], o);
#pragma unroll
    for (u32 f = 0; f < FEEDERS; ++f) all += part[f];
    return all;
  }

  // put(k, first, second): elements k .. k + 3 of the normed row, as bf16 pairs.
  template <typename Put>
  __device__ __forceinline__ void run(const Model& p, Put put) {
    if (WHOLE) load(0);
    float mean = p.centre ? sum(false, 0) / p.hidden : 0, scale = rsqrtf(sum(true, mean) / p.hidden + p.eps);
    each([&](u32 at, u32, float4 u) {
      float4 w = __ldg(weight + at);
      put(at * 4, pack_bf16((u.x - mean) * scale * w.x, (u.y - mean) * scale * w.y),
          pack_bf16((u.z - mean) * scale * w.z, (u.w - mean) * scale * w.w));
    });
  }
};

// Of row `row` of x, into the resident activations or as B fragments.
#if MK_ROWS > 8
template <bool WHOLE>
__device__ __forceinline__ void norm_row(const Model& p, const float* x, const float4* weight, u32 row, u32 lane) {
  RowNorm<WHOLE> norm = {(const float4*)x, weight, p.hidden / 4, lane};
  norm.run(p, [&](u32 k, u32 first, u32 second) {
    u16* to = (u16*)p.normed;
    *(u32*)(to + fragment_index(k, row, p.hidden / 16)) = first, *(u32*)(to + fragment_index(k + 2, row, p.hidden / 16)) = second;
  });
}
#else
template <bool WHOLE>
__device__ __forceinline__ void norm_row(const Model& p, const float* x, const float4* weight, u32* to, u32 lane) {
  RowNorm<WHOLE> norm = {(const float4*)x, weight, p.hidden / 4, lane};
  norm.run(p, [&](u32 k, u32 first, u32 second) { *(uint2*)(to + k / 2) = make_uint2(first, second); });
}
#endif

template <typename To>
__device__ __forceinline__ void norm_row(Block& b, u32 layer, bool second, u32 row, To to) {
  const Model& p = b.p;
  const float4* weight = norm_weight(b, layer, second);
  const float* x = second ? (const float*)p.mid + row * (u64)p.hidden : x_of(p, layer, row);
  if (MK_HOLDS_ROW && p.hidden <= RowNorm<true>::HELD * 128) norm_row<true>(p, x, weight, to, b.lane);
  else norm_row<false>(p, x, weight, to, b.lane);
}
