// QKV where heads of Q and K are normed before RoPE: the task has the whole head, block after block.
//
// The norm's scale is a factor of each column, so weights and RoPE are applied to a block as it comes, and the scale when the sum
// of squares is there.  Until then the blocks lie in a scratch of the storer's own: its registers do not hold a head.
#pragma once
#include "dense.cuh"

static constexpr u32 HEAD_BLOCKS = 8;  // 16-row blocks of a head of at most 128

struct Head {
  Block& b;
  const Task& t;
  float4* held;                // [block][lane]
  float squares[2] = {0, 0};  // of the lane's two columns

  __device__ __forceinline__ Head(Block& block, const Task& task, u32 storer) : b(block), t(task) {
    held = (float4*)b.p.head_scratch + (b.sm * STORERS + storer) * (HEAD_BLOCKS * 32) + b.lane;
  }

  __device__ __forceinline__ void add(u32 block, const TileValues& y, const Walker& walk) {
    const Params& p = b.p;
    const Layer& layer = b.layers[t.layer];
    u32 half = p.head_dim / 2, pair = t.b + block * 8 + y.r;
    u32 d0 = p.interleaved ? 2 * pair : pair, d1 = p.interleaved ? 2 * pair + 1 : pair + half;
    const float* weight = (const float*)layer.head_norm + (t.a < p.heads ? 0 : p.head_dim);
    float w0 = __ldg(weight + d0), w1 = __ldg(weight + d1);
    float b0 = bias_of(layer.qkv_bias, t.a * p.head_dim + d0), b1 = bias_of(layer.qkv_bias, t.a * p.head_dim + d1);
    float v[4];
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      float one = y.v[j] + b0, two = y.v[j + 2] + b1;
      squares[j] += one * one + two * two;
      one *= w0, two *= w1;
      if (layer.rope && y.n + j < p.rows) {
        float2 cs = __ldg((const float2*)p.rope_table + (u64)walk.position(y.n + j) * half + pair);
        float rotated = one * cs.x - two * cs.y;
        two = two * cs.x + one * cs.y, one = rotated;
      }
      v[j] = one, v[j + 2] = two;
    }
    held[block * 32] = make_float4(v[0], v[1], v[2], v[3]);
  }

  __device__ __forceinline__ void store(const TileValues& place, const Walker& walk) {
    float scale[2];
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      for (u32 o = 4; o < 32; o <<= 1) squares[j] += __shfl_xor_sync(~0u, squares[j], o);
      scale[j] = rsqrtf(squares[j] / b.p.head_dim + b.p.eps);
    }
    float4 next = held[0];
#pragma unroll 1
    for (u32 i = 0; i < t.blocks; ++i) {
      float4 v = next;
      if (i + 1 < t.blocks) next = held[(i + 1) * 32];
      TileValues y = {{v.x * scale[0], v.y * scale[1], v.z * scale[0], v.w * scale[1]}, place.r, place.n};
      qkv_store<true>(b, t, i, y, b.p.rows, walk);
    }
  }
};
