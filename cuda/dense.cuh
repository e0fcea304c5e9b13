// The products: QKV, O_PROJ, ROUTER, *_UP, *_DOWN, LM_HEAD.  One math loop, one epilogue each.
#pragma once
#include "attention.cuh"

// Math: one 16-row block times eight columns.  Warp w takes k16 fragments 4 w .. 4 w + 3 of each chunk, chunks in order; all that it
// takes of one is asked for before the first product.

template <typename Next>
__device__ __forceinline__ void multiply_resident(Block& b, float (&c)[4], u32 k16, Next next_chunk) {
  u32 lane = b.lane, f0 = b.warp * 4;
  // columns beyond the rows compute what nobody reads
  const u32* x = b.x + min(lane >> 2, b.p.rows - 1) * b.p.x_stride + (lane & 3) + f0 * 8;
#pragma unroll 1
  for (u32 base = f0; base < k16 + f0; base += CHUNK_K16, x += CHUNK_K16 * 8) {  // base: this warp's first fragment
    const uint4* a = (const uint4*)next_chunk.wait() + f0 * 32 + lane;
    uint4 w[4];
    uint2 v[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      w[i] = base + i < k16 ? a[i * 32] : make_uint4(0, 0, 0, 0);
      v[i] = base + i < k16 ? make_uint2(x[i * 8], x[i * 8 + 4]) : make_uint2(0, 0);
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) ptx::mma(c, w[i], v[i].x, v[i].y);
    next_chunk.release();
  }
}

// The chunks of `parts` vectors of k16 fragments each, one behind the other, and then of one more of `tail` fragments.
struct Parts {
  u32 k16, parts, tail, left;
  __device__ __forceinline__ Parts(u32 k16, u32 parts, u32 tail) : k16(k16), parts(parts), tail(tail), left(k16) {}

  // Fragments of the next chunk, 0 after the last one.
  __device__ __forceinline__ u32 next() {
    u32 n = min(left, CHUNK_K16);
    left -= n;
    if (left == 0 && parts) left = --parts ? k16 : tail;
    return n;
  }
};

// The same with activations that are read once, straight from global memory: `v` has the parts, `w` the tail.  A read takes as
// long as several chunks do, so AHEAD of them are under way.
template <typename Next>
__device__ __forceinline__ void multiply_streamed(Block& b, float (&c)[4], const uint2* v, const uint2* w, Parts parts, Next next_chunk) {
  constexpr u32 AHEAD = MK_BULK ? 4 : 3;  // one more spills below sm_90
  u32 lane = b.lane, f0 = b.warp * 4;
  bool mine = (lane >> 2) < b.p.rows;
  uint2 held[AHEAD][4];
  Parts reads = parts;
  auto read = [&](uint2 (&to)[4]) {
    const uint2* from = (reads.parts ? v : w) + f0 * 32 + lane;
    u32 in_tail = reads.parts == 0, n = reads.next();
#pragma unroll
    for (u32 i = 0; i < 4; ++i) to[i] = mine && f0 + i < n ? __ldcg(from + i * 32) : make_uint2(0, 0);
    (in_tail ? w : v) += n * 32;
  };
#pragma unroll
  for (u32 i = 0; i < AHEAD; ++i) read(held[i]);
  for (u32 n = parts.next(); n;) {
#pragma unroll
    for (u32 j = 0; j < AHEAD && n; ++j, n = parts.next()) {
      const uint4* a = (const uint4*)next_chunk.wait() + f0 * 32 + lane;
#pragma unroll
      for (u32 i = 0; i < 4; ++i)
        if (f0 + i < n) ptx::mma(c, a[i * 32], held[j][i].x, held[j][i].y);
      next_chunk.release();
      read(held[j]);
    }
  }
}

// Storers: v[0], v[1] are row r of the block for columns n, n + 1; v[2], v[3] row r + 8.

struct TileValues { float v[4]; u32 r, n; };

__device__ __forceinline__ void leave(Tile& tile, u32 warp, u32 lane, const float (&c)[4]) {
#if MK_ROWS == 1
  if ((lane & 3) == 0) tile.part[warp][lane >> 2] = c[0], tile.part[warp][(lane >> 2) + 8] = c[2];
#else
  tile.part[warp][lane] = make_float4(c[0], c[1], c[2], c[3]);
#endif
}

__device__ __forceinline__ TileValues sum_tile(const Tile& tile, u32 lane) {
#if MK_ROWS == 1
  u32 r = lane >> 2;
  float low = tile.part[0][r], high = tile.part[0][r + 8];
#pragma unroll
  for (u32 w = 1; w < MATH_WARPS; ++w) low += tile.part[w][r], high += tile.part[w][r + 8];
  return {{low, 0, high, 0}, r, (lane & 3) * 2};
#else
  float4 s = tile.part[0][lane];
#pragma unroll
  for (u32 w = 1; w < MATH_WARPS; ++w) {
    float4 a = tile.part[w][lane];
    s.x += a.x, s.y += a.y, s.z += a.z, s.w += a.w;
  }
  return {{s.x, s.y, s.z, s.w}, lane >> 2, (lane & 3) * 2};
#endif
}

#ifndef MK_BIASES
#define MK_BIASES 1  // 0: the model has none
#endif
__device__ __forceinline__ float bias_of(u64 bias, u32 i) { return MK_BIASES && bias ? __ldg((const float*)bias + i) : 0.f; }

__device__ __forceinline__ const float* x_of(const Model& p, u32 layer, u32 row) {
  return (const float*)p.x + ((layer & 1) * MAX_ROWS + row) * (u64)p.hidden;
}

// Of layer `layer`, the last one's being the final norm; `second`: of what comes of attention.
__device__ __forceinline__ const float4* norm_weight(const Block& b, u32 layer, bool second) {
  return (const float4*)(layer == b.p.layer_count ? b.p.final_norm : second ? b.layers[layer].norm2 : b.layers[layer].norm);
}

// By `threads` threads, while what is to be normed is awaited: nobody has read these weights in this step, so they come from memory.
__device__ __forceinline__ void prefetch_norm(const Block& b, u32 layer, bool second, u32 thread, u32 threads) {
  const float4* weight = norm_weight(b, layer, second);
  for (u32 line = thread; line < (b.p.hidden + 31) / 32; line += threads) ptx::prefetch(weight + line * 8);
}

// RoPE of a pair.  Spelled out, as all sums of products are that several kernels compute: which is fused must not depend on what is
// around it.
__device__ __forceinline__ void rotate(float& one, float& two, float cosine, float sine) {
  float rotated = __fmaf_rn(one, cosine, -(two * sine));
  two = __fmaf_rn(two, cosine, one * sine), one = rotated;
}

__device__ __forceinline__ float sum_of_squares(float4 d) {
  return __fmaf_rn(d.w, d.w, __fmaf_rn(d.z, d.z, __fmaf_rn(d.x, d.x, __fmul_rn(d.y, d.y))));
}

// What a tile's last step reads besides the sums: asked for before the tile is finished, because a read takes about a microsecond.
// QKV: cosine and sine of the tile's columns (v), their pages' numbers (w, as bits).  O_PROJ: x (w), where it adds to it.  *_DOWN: the
// O projection (v) and x (w).  EXPERT_UP of more than eight rows: what the expert counts for those of its columns (v).
struct Beside { float v[4], w[4]; };

__device__ __forceinline__ u32 qkv_kind(const Model& p, const Task& t) {  // 0: q, 1: k, 2: v
  return t.a < p.heads ? 0 : t.a < p.heads + p.kv_heads ? 1 : 2;
}

__device__ __forceinline__ bool reads_residual(const Model& p, u32 op) {
  return (op == O_PROJ && !p.parallel) || op == EXPERT_DOWN || op == DENSE_DOWN;
}

// Of the tile whose first column is row `first` of the step.
__device__ __forceinline__ Beside beside(Block& b, const Task& t, u32 block, u32 first, const Walker& walk) {
  const Model& p = b.p;
  u32 r = b.lane >> 2, n = first + (b.lane & 3) * 2;
  Beside e = {};
  if (t.op == QKV) {
    u32 kind = qkv_kind(p, t);
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      if (n + j >= p.rows) continue;
      u32 at = walk.position(n + j);
      if (kind < 2 && b.layers[t.layer].rope) {
        float2 cs = __ldg((const float2*)p.rope_table + (u64)at * (p.head_dim / 2) + t.b + block * 8 + r);
        e.v[2 * j] = cs.x, e.v[2 * j + 1] = cs.y;
      }
      if (kind) e.w[j] = __uint_as_float(page_id(b, n + j, at / PAGE));
    }
    return e;
  }
#if MK_ROWS > 8
  if (t.op == EXPERT_UP) {
    const Routing& routing = walk.routing();
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      u32 at = routing.start[t.slot] + n + j;
      if (at < routing.start[t.slot + 1]) e.v[j] = __ldcg((const float*)p.chosen_weight + routing.rows[at] * MAX_TOP_K + routing.rank[at]);
    }
    return e;
  }
#endif
  if (!reads_residual(p, t.op)) return e;
  bool down = t.op == EXPERT_DOWN || t.op == DENSE_DOWN, x = down == (p.parallel != 0);
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    u32 row = n + (j & 1), column = t.a + block * 16 + r + (j >> 1) * 8;
    bool mine = row < p.rows && column < p.hidden;
    if (mine && down) e.v[j] = __ldcg((const float*)p.mid + row * (u64)p.hidden + column);
    if (mine && x) e.w[j] = __ldcg(x_of(p, t.layer, row) + column);
  }
  return e;
}

// Eight pairs of one head: bias and RoPE where they are not yet there.
template <bool READY = false>
__device__ __forceinline__ void qkv_store(Block& b, const Task& t, u32 block, const TileValues& y, u32 rows, const Walker& walk,
                                          const Beside& e) {
  const Model& p = b.p;
  const Layer& layer = b.layers[t.layer];
  u32 half = p.head_dim / 2, pair = t.b + block * 8 + y.r, kind = qkv_kind(p, t);
  u32 head = kind == 0 ? t.a : (t.a - p.heads) % p.kv_heads;
  u32 d0 = p.interleaved ? 2 * pair : pair, d1 = p.interleaved ? 2 * pair + 1 : pair + half;
#pragma unroll
  for (u32 j = 0; j < 2; ++j) {
    u32 row = y.n + j;
    if (row >= rows) continue;
    float one = y.v[j], two = y.v[j + 2];
    if (!READY) one += bias_of(layer.qkv_bias, t.a * p.head_dim + d0), two += bias_of(layer.qkv_bias, t.a * p.head_dim + d1);
    u32 at = walk.position(row);
    if (!READY && kind < 2 && layer.rope) rotate(one, two, e.v[2 * j], e.v[2 * j + 1]);
    if (kind == 0) {
      u16* q = (u16*)p.q + ((u64)row * p.heads + head) * p.head_dim;
      q[d0] = to_bf16(one), q[d1] = to_bf16(two);
    } else {
      u32 number = READY ? page_id(b, row, at / PAGE) : __float_as_uint(e.w[j]), token = at % PAGE;
      u16* page = (u16*)page_address(p, number, t.layer, head, kind - 1);
      page[kind == 1 ? key_index(token, d0, p.head_dim) : value_index(token, d0)] = to_bf16(one);
      page[kind == 1 ? key_index(token, d1, p.head_dim) : value_index(token, d1)] = to_bf16(two);
    }
  }
  if (kind) ptx::fence_copy_engine();
}

__device__ __forceinline__ void o_proj_store(Block& b, const Task& t, u32 block, const TileValues& y, u32 rows, const Beside& e) {
  const Model& p = b.p;
  u64 bias = b.layers[t.layer].o_bias;
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    u32 row = y.n + (j & 1), column = t.a + block * 16 + y.r + (j >> 1) * 8;
    if (row >= rows || column >= p.hidden) continue;
    float v = y.v[j] + bias_of(bias, column);
    ((float*)p.mid)[row * (u64)p.hidden + column] = p.parallel ? v : e.w[j] + v;
  }
}

__device__ __forceinline__ void router_store(Block& b, const Task& t, u32 block, const TileValues& y, u32 rows) {
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    u32 row = y.n + (j & 1), expert = t.a + block * 16 + y.r + (j >> 1) * 8;
    if (row < rows && expert < b.p.experts) ((float*)b.p.router_logits)[row * b.p.experts + expert] = y.v[j];
  }
}

// Rows 0-7 of the block are gate, 8-15 up.  Rows of the batch that did not choose the expert get zero, and so add nothing below.
__device__ __forceinline__ void up_store(Block& b, const Task& t, u32 block, const TileValues& y, u32 rows, const Routing& routing,
                                         const Beside& e) {
  const Model& p = b.p;
  const Layer& layer = b.layers[t.layer];
  u32 k = t.a + block * 8 + y.r;
  u16* out = (u16*)(t.op == EXPERT_UP ? p.expert_hidden : t.op == SHARED_UP ? p.shared_hidden : p.dense_hidden);
  if (t.op == EXPERT_UP) out += (u64)t.slot * p.expert_k16 * 16 * MAX_ROWS;
  u32 k16 = t.op == EXPERT_UP ? p.expert_k16 : t.op == SHARED_UP ? p.shared_k16 : p.dense_k16;
#pragma unroll
  for (u32 j = 0; j < 2; ++j) {
    u32 row = y.n + j;
    float weight = 1;
    if (t.op == EXPERT_UP) {
#if MK_ROWS > 8
      weight = e.v[j];
#else
      weight = 0;
      for (u32 i = 0; i < p.top_k; ++i)
        if (row < rows && routing.chosen[row][i] == routing.expert[t.slot]) weight = routing.weight[row][i];
#endif
    }
    float gate = y.v[j], up = y.v[j + 2];
    if (t.op == DENSE_UP) gate += bias_of(layer.gate_bias, k), up += bias_of(layer.up_bias, k);
    float h = __fdividef(gate, 1.f + __expf(-gate)) * up * weight;
#if MK_ROWS > 8  // an expert's columns are the rows that chose it, and so is what it leaves
    u32 columns = t.op == EXPERT_UP ? routing.start[t.slot + 1] - routing.start[t.slot] : rows;
    if (row < columns) out[fragment_index(k, row, k16)] = weight != 0 ? to_bf16(h) : (u16)0;
#else
    out[fragment_index(k, row, k16)] = row < rows && weight != 0 ? to_bf16(h) : (u16)0;
#endif
  }
}

// x of the next layer: (x + attention) + FFN.
__device__ __forceinline__ void down_store(Block& b, const Task& t, u32 block, const TileValues& y, u32 rows, const Beside& e) {
  const Model& p = b.p;
  u64 bias = t.op == DENSE_DOWN ? b.layers[t.layer].down_bias : 0;
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    u32 row = y.n + (j & 1), column = t.a + block * 16 + y.r + (j >> 1) * 8;
    if (row >= rows || column >= p.hidden) continue;
    float ffn = y.v[j];
    if (p.shared_average && t.op == EXPERT_DOWN) ffn *= 0.5f;
    ((float*)x_of(p, t.layer + 1, row))[column] = e.v[j] + e.w[j] + (ffn + bias_of(bias, column));
  }
}

// Logits where the host wants them, and the best token so far of every column, kept by the storer over the task's blocks.
struct Best { float value[2]; u32 token[2]; };

__device__ __forceinline__ void lm_head_store(Block& b, const Task& t, u32 block, const TileValues& y, u32 rows, Best& best) {
  const Model& p = b.p;
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    u32 row = y.n + (j & 1), token = t.a + block * 16 + y.r + (j >> 1) * 8;
    if (row >= rows || token >= p.vocab) continue;
    float v = y.v[j] * p.logit_scale;
    if (b.s.wants[row]) ((float*)p.logits)[row * (u64)p.vocab + token] = v;
    if (best.token[j & 1] == ~0u || v > best.value[j & 1] || (v == best.value[j & 1] && token < best.token[j & 1]))
      best.value[j & 1] = v, best.token[j & 1] = token;
  }
}

#if MK_ROWS > 8
// Of the task's earlier blocks, as this warp has left it, for eight rows from `first` on.
__device__ __forceinline__ Best best_before(Block& b, const Task& t, u32 block, u32 first) {
  const Model& p = b.p;
  Best best = {{0, 0}, {~0u, ~0u}};
#pragma unroll
  for (u32 j = 0; j < 2; ++j) {
    u32 row = first + b.lane * 2 + j, at = row * p.head_tiles + t.tile;
    if (block && b.lane < 4 && row < p.rows)
      best.value[j] = __ldcg((const float*)p.tile_max + at), best.token[j] = __ldcg((const u32*)p.tile_arg + at);
  }
  return best;
}
#endif

// The best of the lanes, of eight rows from `first` on.
__device__ __forceinline__ void lm_head_finish(Block& b, const Task& t, u32 rows, Best& best, u32 first = 0) {
  const Model& p = b.p;
#pragma unroll
  for (u32 j = 0; j < 2; ++j) {
    for (u32 o = 4; o < 32; o <<= 1) {
      float v = __shfl_xor_sync(~0u, best.value[j], o);
      u32 token = __shfl_xor_sync(~0u, best.token[j], o);
      if (token != ~0u && (best.token[j] == ~0u || v > best.value[j] || (v == best.value[j] && token < best.token[j])))
        best.value[j] = v, best.token[j] = token;
    }
    u32 row = first + (b.lane & 3) * 2 + j;
    if (b.lane < 4 && row < rows) {
      ((float*)p.tile_max)[row * p.head_tiles + t.tile] = best.value[j];
      ((u32*)p.tile_arg)[row * p.head_tiles + t.tile] = best.token[j];
    }
  }
}
