// QKV where heads of Q and K are normed before RoPE: the task has the whole head, block after block.
//
// The norm's scale is a factor of each column, so weights and RoPE are applied to a block as it comes, and the scale when the sum
// of squares is there.  Until then the blocks lie in a scratch of the storer's own: its registers do not hold a head.
#pragma once
#include "one_row.cuh"

static constexpr u32 HEAD_BLOCKS = 8;  // 16-row blocks of a head of at most 128

struct Head {
  Block& b;
  const Task& t;
  float4* scratch;             // [group][HEAD_BLOCKS + 1][lane]: the blocks, and the squares where there are several groups
  float squares[2] = {0, 0};  // of the lane's two columns

  __device__ __forceinline__ Head(Block& block, const Task& task, u32 storer) : b(block), t(task) {
    scratch = (float4*)b.p.head_scratch + (b.sm * STORERS + storer) * (GROUPS * (HEAD_BLOCKS + 1) * 32) + b.lane;
  }

  __device__ __forceinline__ float4* held(u32 group) const { return scratch + group * ((HEAD_BLOCKS + 1) * 32); }

  __device__ __forceinline__ void add(u32 block, u32 group, const TileValues& y, const Walker& walk) {
    const Model& p = b.p;
    const Layer& layer = b.layers[t.layer];
    float4* to = held(group);
    if (WIDE) {
      float4 before = block ? to[HEAD_BLOCKS * 32] : make_float4(0, 0, 0, 0);
      squares[0] = before.x, squares[1] = before.y;
    }
    u32 half = p.head_dim / 2, pair = t.b + block * 8 + y.r;
    u32 d0 = p.interleaved ? 2 * pair : pair, d1 = p.interleaved ? 2 * pair + 1 : pair + half;
    const float* weight = (const float*)layer.head_norm + (t.a < p.heads ? 0 : p.head_dim);
    float w0 = __ldg(weight + d0), w1 = __ldg(weight + d1);
    float b0 = bias_of(layer.qkv_bias, t.a * p.head_dim + d0), b1 = bias_of(layer.qkv_bias, t.a * p.head_dim + d1);
    float v[4];
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      float one = y.v[j] + b0, two = y.v[j + 2] + b1;
      squares[j] += __fmaf_rn(two, two, __fmul_rn(one, one));
      one *= w0, two *= w1;
      if (layer.rope && y.n + j < p.rows) {
        float2 cs = __ldg((const float2*)p.rope_table + (u64)walk.position(y.n + j) * half + pair);
        rotate(one, two, cs.x, cs.y);
      }
      v[j] = one, v[j + 2] = two;
    }
    to[block * 32] = make_float4(v[0], v[1], v[2], v[3]);
    if (WIDE) to[HEAD_BLOCKS * 32] = make_float4(squares[0], squares[1], 0, 0);
  }

  // `r`: the lane's row of a block; its columns are rows `n` and `n + 1` of the step.
  __device__ __forceinline__ void store(u32 group, u32 r, u32 n, const Walker& walk) {
    const float4* from = held(group);
    if (WIDE) squares[0] = from[HEAD_BLOCKS * 32].x, squares[1] = from[HEAD_BLOCKS * 32].y;
    float scale[2];
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      for (u32 o = 4; o < 32; o <<= 1) squares[j] += __shfl_xor_sync(~0u, squares[j], o);
      scale[j] = rsqrtf(squares[j] / b.p.head_dim + b.p.eps);
    }
    float4 next = from[0];
#pragma unroll 1
    for (u32 i = 0; i < t.blocks; ++i) {
      float4 v = next;
      if (i + 1 < t.blocks) next = from[(i + 1) * 32];
      TileValues y = {{v.x * scale[0], v.y * scale[1], v.z * scale[0], v.w * scale[1]}, r, n};
#if MK_ROWS == 1
      one::qkv_store<true>(b, t, i, y, walk, {});
#else
      qkv_store<true>(b, t, i, y, b.p.rows, walk, {});
#endif
    }
  }
};
