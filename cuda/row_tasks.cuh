// NORM and TOP_K: what every SM does for itself in a step of at most eight rows, as tasks of a row for steps of more.
#pragma once
#include "dense.cuh"
#include "routing.cuh"

// Norm of a row of x (or of mid, t.c) into B fragments, by a warp that does what three feeders do for a row together, each in turn, so
// that sums are added in the same order: of threads, then lanes, then warps.
struct RowNorm {
  static constexpr u32 HELD = 6, STRIDE = FEEDERS * 32;  // as the feeders have them
  const float4 *x, *weight;
  u32 n, lane;

  __device__ __forceinline__ void load(float4 (&v)[HELD], const float4* from, u32 base, u32 feeder) const {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
      u32 at = base + i * STRIDE + feeder * 32 + lane;
      v[i] = at < n ? __ldcg(from + at) : make_float4(0, 0, 0, 0);
    }
  }

  // Sum of x, or of the squares of x - mean.
  __device__ __forceinline__ float sum(bool squares, float mean) const {
    float all = 0;
#pragma unroll 1
    for (u32 feeder = 0; feeder < FEEDERS; ++feeder) {
      float part = 0;
#pragma unroll 1
      for (u32 base = 0; base < n; base += HELD * STRIDE) {
        float4 v[HELD];
        load(v, x, base, feeder);
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) {
          if (base + i * STRIDE + feeder * 32 + lane >= n) break;
          float4 d = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
          part += squares ? sum_of_squares(d) : d.x + d.y + d.z + d.w;
        }
      }
      for (u32 o = 16; o; o >>= 1) part += __shfl_xor_sync(~0u, part, o);
      all += part;
    }
    return all;
  }

  __device__ __forceinline__ void write(u16* to, u32 row, float mean, float scale) const {
#pragma unroll 1
    for (u32 first = 0; first < n; first += HELD * 32) {
      float4 v[HELD], w[HELD];
#pragma unroll
      for (u32 i = 0; i < HELD; ++i) {
        u32 at = first + i * 32 + lane;
        v[i] = at < n ? __ldcg(x + at) : make_float4(0, 0, 0, 0), w[i] = at < n ? __ldg(weight + at) : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (u32 i = 0; i < HELD; ++i) {
        u32 k = (first + i * 32 + lane) * 4;
        if (k >= n * 4) break;
        *(u32*)(to + fragment_index(k, row, n / 4)) = pack_bf16((v[i].x - mean) * scale * w[i].x, (v[i].y - mean) * scale * w[i].y);
        *(u32*)(to + fragment_index(k + 2, row, n / 4)) = pack_bf16((v[i].z - mean) * scale * w[i].z, (v[i].w - mean) * scale * w[i].w);
      }
    }
  }
};

__device__ __noinline__ void norm_row(const Params& p, const float* x, u64 weight, u32 row, u32 lane) {
  RowNorm norm = {(const float4*)x, (const float4*)weight, p.hidden / 4, lane};
  float mean = p.centre ? norm.sum(false, 0) / p.hidden : 0;
  float scale = rsqrtf(norm.sum(true, mean) / p.hidden + p.eps);
  norm.write((u16*)p.normed, row, mean, scale);
}

__device__ __forceinline__ void norm_row(Block& b, const Task& t, u32 row) {
  const Params& p = b.p;
  bool last = t.layer >= p.layer_count;  // the final norm
  u32 layer = last ? p.layer_count : t.layer;
  u64 weight = last ? p.final_norm : t.c ? b.layers[layer].norm2 : b.layers[layer].norm;
  norm_row(p, t.c ? (const float*)p.mid + row * (u64)p.hidden : x_of(p, layer, row), weight, row, b.lane);
}

__device__ __noinline__ void top_k_row(const Params& p, u32 row, u32 lane) {
  u32 used[MAX_EXPERTS / 32] = {};
  float logits[MAX_EXPERTS / 32];
  load_logits(p, row, lane, logits);
  route_row(p, logits, lane, used, [&](u32 k, u32 expert, float weight) {
    ((u32*)p.chosen)[row * MAX_TOP_K + k] = expert, ((float*)p.chosen_weight)[row * MAX_TOP_K + k] = weight;
  });
}
