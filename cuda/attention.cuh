// ATTENTION: one split of the keys for one row and the (at most eight) query heads of a KV head.  MERGE: its splits together.
//
// K and V pages come through the ring, one chunk each.  Scores: keys as rows of the tensor core, heads as columns; page n goes to
// math warps 0-3 (n even) or 4-7 (n odd), 16 keys a warp.  Then one maximum over the split, probabilities as B fragments in shared
// memory, and P·V with warp w owning 16 rows of the output, so that no sum crosses warps and its order is that of the keys.
#pragma once
#include "tagged.cuh"

__device__ __forceinline__ u32 page_id(Block& b, u32 row, u32 page) {
  return __ldg((const u32*)b.p.page_table + b.s.sequence[row] * b.p.table_width + page);
}

__device__ __forceinline__ const char* page_address(const Model& p, u32 id, u32 layer, u32 g, u32 value) {
  return (const char*)p.kv + (((u64)id * p.layer_count + layer) * p.kv_heads + g) * 2 * (PAGE * p.head_dim * 2) + value * (PAGE * p.head_dim * 2);
}

// u16 index of element (token, d) in a K page (keys are rows) and in a V page (d are rows)
__device__ __forceinline__ u32 key_index(u32 token, u32 d, u32 head_dim) { return packed_index(token, d, head_dim / 16); }
__device__ __forceinline__ u32 value_index(u32 token, u32 d) { return packed_index(d, token, PAGE / 16); }

__device__ __forceinline__ u32* q_buffer(Block& b, const Task& t, u32 buffer, u32 row) {
  return b.q + (WIDE ? buffer * TASK_ROWS + row - t.a : buffer) * ROWS * b.q_stride;
}

// Feeder: q of the row's heads of KV head g into a q buffer.  Called by all feeder threads.
__device__ __forceinline__ void attention_feed(Block& b, const Task& t, u32 row, u32 buffer, u32 thread) {
  const Model& p = b.p;
  u32 group = p.heads / p.kv_heads, pieces = p.head_dim / 8, n = group * pieces;  // of 16 bytes
  u32* to = q_buffer(b, t, buffer, row);
  const uint4* from = (const uint4*)p.q + ((u64)row_of(t, row) * p.heads + t.c * group) * pieces;
  uint4 v[2];  // at most 8 heads x 16 pieces: all are under way before the first is stored
#pragma unroll
  for (u32 i = 0; i < 2; ++i)
    if (thread + i * FEEDERS * 32 < n) v[i] = __ldcg(from + thread + i * FEEDERS * 32);
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    u32 at = thread + i * FEEDERS * 32, h = at / pieces;
    if (at < n) *(uint4*)(to + h * b.q_stride + (at - h * pieces) * 4) = v[i];  // beyond the group: zero since the launch
  }
}

// Math: false when the launch is given up.  put(c): rows 16 w .. 16 w + 15 of the split's output, of warp w; sums and maxima are in the
// tile by then.
template <typename Next, typename Put>
__device__ __forceinline__ bool attention_math(Block& b, const Task& t, u32 row, Walker& walk, u32 buffer, Tile& tile, Next next_chunk, Put put) {
  const Model& p = b.p;
  KeyRange r = walk.keys(t, row_of(t, row));
  u32 lane = b.lane, w = b.warp, d16 = p.head_dim / 16;
  u32 own_position = walk.position(row_of(t, row)), token = own_position % PAGE;  // in its page
  // Of the split's blocks of 16 keys the one with the step's own token, which with one row is not read from the page.
  u32 fresh = ONE && r.hi > own_position ? (own_position / PAGE - r.first_page) * (PAGE / 16) + token / 16 : ~0u;
  const u32* q = q_buffer(b, t, buffer, row) + (lane >> 2) * b.q_stride + (lane & 3);
  float score[2][4];
#pragma unroll
  for (u32 i = 0; i < 2; ++i)
#pragma unroll
    for (u32 j = 0; j < 4; ++j) score[i][j] = NEG_INF;
  u32 key_of[2] = {~0u, ~0u};  // first key of each 16-key block of this warp
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
#pragma unroll 1
    for (u32 n = 2 * i; n < min(2 * i + 2, r.pages); ++n) {
      const uint4* page = (const uint4*)next_chunk.wait() + (w & 3) * d16 * 32 + lane;
      if ((n & 1) == (w >> 2)) {
        float c[4] = {};
        bool own = n * (PAGE / 16) + (w & 3) == fresh && (lane >> 2) == (token & 7);
#pragma unroll(ONE ? 4 : 2)
        for (u32 k = 0; k < d16; ++k) {
          uint4 a = page[k * 32];
#if MK_ROWS == 1
          if (own) {  // the lane has eight elements of the token's key
            u32 low = b.s.fresh[buffer][0][k * 8 + (lane & 3)], high = b.s.fresh[buffer][0][k * 8 + (lane & 3) + 4];
            if (token & 8) a.y = low, a.w = high;
            else a.x = low, a.z = high;
          }
#endif
          ptx::mma(c, a, q[k * 8], q[k * 8 + 4]);
        }
        u32 key = (r.first_page + n) * PAGE + (w & 3) * 16 + (lane >> 2);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
          u32 at = key + (j >> 1) * 8;
          score[i][j] = at >= r.lo && at < r.hi ? __fmul_rn(c[j], p.attention_scale) : NEG_INF;
        }
        key_of[i] = n * 4 + (w & 3);
      }
      next_chunk.release();
    }
  }
  // maximum of each head over the split: over this warp's keys, then over the warps
  float top0 = NEG_INF, top1 = NEG_INF;
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    top0 = fmaxf(top0, fmaxf(score[i][0], score[i][2]));
    top1 = fmaxf(top1, fmaxf(score[i][1], score[i][3]));
  }
  for (u32 o = 4; o < 32; o <<= 1) {
    top0 = fmaxf(top0, __shfl_xor_sync(~0u, top0, o));
    top1 = fmaxf(top1, __shfl_xor_sync(~0u, top1, o));
  }
  if (lane < 4) b.s.wide[w][lane * 2] = top0, b.s.wide[w][lane * 2 + 1] = top1;
  if (!walk.meet(b.s.math_team)) return false;
  u32 h = (lane & 3) * 2;
  top0 = top1 = NEG_INF;
#pragma unroll
  for (u32 i = 0; i < MATH_WARPS; ++i) top0 = fmaxf(top0, b.s.wide[i][h]), top1 = fmaxf(top1, b.s.wide[i][h + 1]);
  float sum0 = 0, sum1 = 0;
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    float e0 = __expf(score[i][0] - top0), e1 = __expf(score[i][1] - top1), e2 = __expf(score[i][2] - top0), e3 = __expf(score[i][3] - top1);
    if (key_of[i] == ~0u) continue;
    sum0 += e0 + e2, sum1 += e1 + e3;
    b.s.probs[key_of[i]][lane] = make_uint2(ptx::transpose(pack_bf16(e0, e1)), ptx::transpose(pack_bf16(e2, e3)));
  }
  for (u32 o = 4; o < 32; o <<= 1) sum0 += __shfl_xor_sync(~0u, sum0, o), sum1 += __shfl_xor_sync(~0u, sum1, o);
  if (lane < 4) tile.sum[w][lane * 2] = sum0, tile.sum[w][lane * 2 + 1] = sum1;
  if (w == 0 && lane < 4) tile.top[h] = top0, tile.top[h + 1] = top1;
  if (!walk.meet(b.s.math_team)) return false;
  float c[4] = {};
#pragma unroll 1
  for (u32 n = 0; n < r.pages; ++n) {
    const uint4* page = (const uint4*)next_chunk.wait();
    if (w < d16)
#pragma unroll
      for (u32 k = 0; k < PAGE / 16; ++k) {
        uint2 pr = b.s.probs[n * (PAGE / 16) + k][lane];
        uint4 a = page[(w * (PAGE / 16) + k) * 32 + lane];
#if MK_ROWS == 1
        if (n * (PAGE / 16) + k == fresh && (lane & 3) == (token & 7) >> 1) {  // two elements of its value, in rows d and d + 8
          const u16* v = (const u16*)b.s.fresh[buffer][1] + w * 16 + (lane >> 2);
          auto put = [&](u32& word, u32 element) { word = token & 1 ? (word & 0xffff) | element << 16 : (word & 0xffff0000) | element; };
          if (token & 8) put(a.z, v[0]), put(a.w, v[8]);
          else put(a.x, v[0]), put(a.y, v[8]);
        }
#endif
        ptx::mma(c, a, pr.x, pr.y);
      }
    next_chunk.release();
  }
  put(c);
  return true;  // who writes wide or probs next has met everybody since they were read: once for the one, twice for the other
}

#if MK_ROWS > 1
// Storer: the split's output, or with one slot the row's attention itself.
__device__ __forceinline__ void attention_store(Block& b, const Task& t, u32 row, const Tile& tile) {
  const Model& p = b.p;
  u32 lane = b.lane, group = p.heads / p.kv_heads, slots = b.layers[t.layer].splits;
  u32 h = (lane & 3) * 2;
  float sum[2] = {0, 0};
#pragma unroll
  for (u32 w = 0; w < MATH_WARPS; ++w) sum[0] += tile.sum[w][h], sum[1] += tile.sum[w][h + 1];
#pragma unroll
  for (u32 j = 0; j < 2; ++j) {
    if (h + j >= group) continue;
    u32 head = t.c * group + h + j;
    if (slots > 1) {
      u64 at = ((u64)row_of(t, row) * p.heads + head) * p.splits + t.d;
      if (lane < 4) ((float*)p.part_max)[at] = tile.top[h + j], ((float*)p.part_sum)[at] = sum[j];
      float* out = (float*)p.part_out + at * p.head_dim + (lane >> 2);
#pragma unroll 1
      for (u32 w = 0; w < p.head_dim / 16; ++w) {
        const float* v = (const float*)&tile.part[w][lane];
        out[w * 16] = v[j], out[w * 16 + 8] = v[j + 2];
      }
    } else {
      u16* out = (u16*)p.attention;
      float scale = 1.f / sum[j];
#pragma unroll 1
      for (u32 w = 0; w < p.head_dim / 16; ++w) {
        const float* v = (const float*)&tile.part[w][lane];
        u32 k = head * p.head_dim + w * 16 + (lane >> 2);
        u32 k16 = p.heads * p.head_dim / 16;
        out[fragment_index(k, row_of(t, row), k16)] = to_bf16(v[j] * scale);
        out[fragment_index(k + 8, row_of(t, row), k16)] = to_bf16(v[j + 2] * scale);
      }
    }
  }
}
#endif

// Storer alone: merge one head's splits, those that the row's own length has, in ascending order.  Each lane takes four elements.
// MERGE_BATCH splits get their weights together, which decides the bits; all reads of MERGE_AHEAD are under way together.
static constexpr u32 MERGE_BATCH = 12;
static constexpr bool HALVES = WIDE || !MK_BULK;  // registers
static constexpr u32 MERGE_AHEAD = HALVES ? MERGE_BATCH / 2 : MERGE_BATCH;

__device__ __forceinline__ void merge(Block& b, const Task& t, u32 row, u32 position) {
  const Model& p = b.p;
  u32 lane = b.lane, window = b.layers[t.layer].window, d = lane * 4;
  u32 splits = position / SPLIT - oldest_key(position, window) / SPLIT + 1;
  u64 at = ((u64)row * p.heads + t.c) * p.splits;
  const float *tops = (const float*)p.part_max + at, *sums = (const float*)p.part_sum + at;
  const float* out = (const float*)p.part_out + at * p.head_dim + d;
  float peak = NEG_INF, l = 0;
  float4 y = {0, 0, 0, 0};
#pragma unroll 1
  for (u32 base = 0; base < splits; base += MERGE_BATCH) {
    u32 n = min(MERGE_BATCH, splits - base);
    float top = lane < n ? __ldcg(tops + base + lane) : NEG_INF, sum = lane < n ? __ldcg(sums + base + lane) : 0;
    float4 v[MERGE_AHEAD];
#pragma unroll
    for (u32 i = 0; i < MERGE_AHEAD && !HALVES; ++i)
      v[i] = i < n && d < p.head_dim ? __ldcg((const float4*)(out + (u64)(base + i) * p.head_dim)) : make_float4(0, 0, 0, 0);
    float last = peak;
    peak = fmaxf(peak, top);
    for (u32 o = 16; o; o >>= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, o));
    float scale = __expf(last - peak), weight = __expf(top - peak);  // of what is there, and of what comes to it
    l = __fmaf_rn(l, scale, __fmul_rn(weight, sum));
    // spelled out, so that all kernels fuse the same
    y = make_float4(__fmul_rn(y.x, scale), __fmul_rn(y.y, scale), __fmul_rn(y.z, scale), __fmul_rn(y.w, scale));
#pragma unroll 1
    for (u32 first = 0; first < MERGE_BATCH; first += MERGE_AHEAD) {
#pragma unroll
      for (u32 i = 0; i < MERGE_AHEAD && HALVES; ++i)
        v[i] = first + i < n && d < p.head_dim ? __ldcg((const float4*)(out + (u64)(base + first + i) * p.head_dim))
                                               : make_float4(0, 0, 0, 0);
#pragma unroll
      for (u32 i = 0; i < MERGE_AHEAD; ++i) {
        float w = __shfl_sync(~0u, weight, first + i);
        y = make_float4(__fmaf_rn(w, v[i].x, y.x), __fmaf_rn(w, v[i].y, y.y), __fmaf_rn(w, v[i].z, y.z), __fmaf_rn(w, v[i].w, y.w));
      }
    }
  }
  for (u32 o = 16; o; o >>= 1) l += __shfl_xor_sync(~0u, l, o);
  l = 1.f / l;
  if (d < p.head_dim) {
    u16* to = (u16*)p.attention;
    u32 k16 = p.heads * p.head_dim / 16;
    *(u32*)(to + fragment_index(t.c * p.head_dim + d, row, k16)) = pack_bf16(y.x * l, y.y * l);
    *(u32*)(to + fragment_index(t.c * p.head_dim + d + 2, row, k16)) = pack_bf16(y.z * l, y.w * l);
  }
}
