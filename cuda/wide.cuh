// Products for steps of more than eight rows: each weight fragment is read once and meets all groups of eight rows.  Activations are
// read from global memory (the L2 cache), where NORM tasks and the storers of other products leave them; the sums of a row are those
// of the eight-row kernel, fragment by fragment in the same order.
#pragma once
#include "dense.cuh"

// Rows that a product's tiles have as columns: of an expert's up those that chose it, listed; of all others the step's.
__device__ __forceinline__ u32 columns_of(Block& b, const Task& t, const Walker& walk) {
  return t.op == EXPERT_UP ? __popcll(walk.routing().rows[t.slot]) : b.p.rows;
}

static constexpr u32 DEPTH = GROUPS < 4 ? GROUPS : 4;  // groups' fragments that are under way: each four of a lane

// One vector of activations, each lane reading its column of group g at `at[g]` (~0: nobody's).
template <typename Next>
__device__ __forceinline__ void multiply_listed(Block& b, float (&c)[GROUPS][4], const uint2* v, const u32 (&at)[GROUPS], u32 groups, u32 k16,
                                                Next next_chunk) {
  u32 lane = b.lane, f0 = b.warp * 4;
  uint2 held[DEPTH][4];
  auto read = [&](uint2 (&to)[4], u32 g, u32 base) {
    bool mine = at[g] != ~0u;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) to[i] = mine && base + i < k16 ? __ldcg(v + at[g] + (base + i) * 32) : make_uint2(0, 0);
  };
#pragma unroll
  for (u32 g = 0; g < DEPTH; ++g) read(held[g], g, f0);
#pragma unroll 1
  for (u32 base = f0; base < k16 + f0; base += CHUNK_K16) {
    const uint4* from = (const uint4*)next_chunk.wait() + f0 * 32 + lane;
    uint4 a[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
      if (base + i < k16) a[i] = from[i * 32];
#pragma unroll
    for (u32 g = 0; g < GROUPS; ++g) {
      if (g < groups) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
          if (base + i < k16) ptx::mma(c[g], a[i], held[g % DEPTH][i].x, held[g % DEPTH][i].y);
      }
      read(held[g % DEPTH], (g + DEPTH) % GROUPS, g + DEPTH < GROUPS ? base : base + CHUNK_K16);
    }
    next_chunk.release();
  }
}

// Products of normed rows: QKV, ROUTER, *_UP, LM_HEAD.
template <typename Next>
__device__ __forceinline__ void multiply_normed(Block& b, float (&c)[GROUPS][4], const Task& t, Walker& walk, Next next_chunk) {
  u64 rows = t.op == EXPERT_UP ? walk.routing().rows[t.slot] : every_row(b.p.rows);
  u32 at[GROUPS], columns = __popcll(rows);
#pragma unroll
  for (u32 g = 0; g < GROUPS; ++g) {
    u32 column = g * ROWS + (b.lane >> 2), row = t.op == EXPERT_UP && column < columns ? nth_row(rows, column) : column;
    at[g] = column < columns ? (row >> 3) * t.k16 * 32 + (row & 7) * 4 + (b.lane & 3) : ~0u;
  }
  multiply_listed(b, c, (const uint2*)b.p.normed, at, (columns + ROWS - 1) / ROWS, t.k16, next_chunk);
}

// Which rows the parts of a product have: of experts those that chose them, of all else all.
struct Masks {
  const u64* routed;  // null: not routed
  u64 all;
  __device__ __forceinline__ u64 of(u32 part, bool tail) const { return routed && !tail ? routed[part] : all; }
};

// Several vectors behind each other, as Parts has them, into one accumulation; `v` has [part][group][k16], `w` the tail's
// [group][k16].  Rows that a part has not are taken for zero and not read, groups without any skipped.
template <typename Next>
__device__ __forceinline__ void multiply_wide(Block& b, float (&c)[GROUPS][4], const uint2* v, const uint2* w, Parts parts, Masks masks,
                                              Next next_chunk) {
  u32 lane = b.lane, f0 = b.warp * 4, row = lane >> 2, part = 0, read_part = 0;
  Parts reads = parts;
  const uint2* from = nullptr;  // of the chunk that is read, and of which part
  u32 n_read = 0, stride = 0;
  u64 mask_read = 0;
  auto next_read = [&] {
    bool tail = reads.parts == 0;
    u32 before = reads.parts;
    const uint2*& at = tail ? w : v;
    stride = (tail ? parts.tail : parts.k16) * 32, mask_read = masks.of(read_part, tail), from = at + f0 * 32 + lane;
    n_read = reads.next(), at += n_read * 32;
    if (!tail && reads.parts != before) v += (GROUPS - 1) * stride, ++read_part;
  };
  auto read = [&](uint2 (&to)[4], u32 g) {
    bool mine = mask_read >> (g * ROWS + row) & 1;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) to[i] = mine && f0 + i < n_read ? __ldcg(from + g * stride + i * 32) : make_uint2(0, 0);
  };
  uint2 held[DEPTH][4];
  next_read();
#pragma unroll
  for (u32 g = 0; g < DEPTH; ++g) read(held[g], g);
  for (;;) {
    bool tail = parts.parts == 0;
    u32 before = parts.parts, n = parts.next();
    if (n == 0) break;
    u64 mask = masks.of(part, tail);
    part += !tail && parts.parts != before;
    const uint4* a_from = (const uint4*)next_chunk.wait() + f0 * 32 + lane;
    uint4 a[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
      if (f0 + i < n) a[i] = a_from[i * 32];
#pragma unroll
    for (u32 g = 0; g < GROUPS; ++g) {
      if (mask >> g * ROWS & 255) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
          if (f0 + i < n) ptx::mma(c[g], a[i], held[g % DEPTH][i].x, held[g % DEPTH][i].y);
      }
      if (g == GROUPS - DEPTH) next_read();
      read(held[g % DEPTH], (g + DEPTH) % GROUPS);
    }
    next_chunk.release();
  }
}
