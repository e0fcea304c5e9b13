// Products for steps of more than eight rows: each weight fragment is read once and meets all groups of eight columns.  Activations are
// read from global memory (the L2 cache), where NORM tasks and the storers of other products leave them.  A column's sums are added
// as in the eight-row kernel, fragment by fragment in the same order; they wait in shared memory while other columns have their turn.
// There is room for PASS_ROWS columns: of more, a block's weights come once again for the rest.
#pragma once
#include "dense.cuh"

// Columns of a product's tiles: of an expert's up the rows that chose it, of all others the step's.
__device__ __forceinline__ u32 columns_of(Block& b, const Task& t, const Walker& walk) {
  return t.op == EXPERT_UP ? walk.routing().start[t.slot + 1] - walk.routing().start[t.slot] : b.p.rows;
}

// How often the weights of a block of the task come.
__device__ __forceinline__ u32 passes_of(Block& b, const Task& t, const Walker& walk) {
  return PASSES ? (columns_of(b, t, walk) + PASS_ROWS - 1) / PASS_ROWS : 1;
}

struct Listed { u32 first, end; };  // places in Routing::rows

// The rows that chose the expert of a slot and have their sums in this pass of experts' down.
__device__ __forceinline__ Listed listed_in_pass(const Routing& routing, u32 slot, u32 pass) {
  Listed all = {routing.start[slot], routing.start[slot + 1]};
  if (PASSES) (pass ? all.first : all.end) = routing.second[slot];
  return all;
}

// What a product's units are: each chunk of weights meets the groups of columns in turn.  Experts' down has a part for each active
// expert, whose columns are the rows that chose it, and a tail for the shared ones; all others have one part.  A part of no columns in
// this pass is left out, by the loader too.
struct Units {
  const Routing* routing;  // null: columns are the step's rows
  u32 slot, rows, pass;    // first part's slot
  u32 k16, parts, tail;
  bool by_row;             // the pass is that of the row, not of its place in the list
  u32 part = 0, left, group = 0, columns;  // left: k16 of the part from this chunk on, 0 at the end
  u32 first, base;         // of the first column: its place in the list, and among the part's activations

  __device__ __forceinline__ Units(Block& b, const Task& t, const Walker& walk, u32 pass)
      : routing(is_routed(t.op) ? &walk.routing() : nullptr), slot(t.op == EXPERT_UP ? t.slot : 0), rows(b.p.rows), pass(pass),
        k16(t.k16), parts(t.op == EXPERT_DOWN ? routing->count : 1), tail(t.tail), by_row(t.op == EXPERT_DOWN) {
    enter();
  }

  __device__ __forceinline__ u32 n() const { return min(left, CHUNK_K16); }  // of this chunk
  __device__ __forceinline__ bool listed() const { return routing && part < parts; }
  __device__ __forceinline__ u32 width() const { return part < parts ? k16 : tail; }
  __device__ __forceinline__ u32 row(u32 column) const { return routing->rows[first + column]; }
  __device__ __forceinline__ bool last_group() const { return (group + 1) * ROWS >= columns; }

  __device__ __forceinline__ void enter() {
    for (;; ++part) {
      left = part < parts ? k16 : part == parts ? tail : 0;
      first = base = 0, columns = rows;
      if (listed()) first = routing->start[slot + part], columns = routing->start[slot + part + 1] - first;
      if (!PASSES) return;
      if (by_row && listed()) {
        Listed mine = listed_in_pass(*routing, part, pass);
        base = mine.first - first, first = mine.first, columns = mine.end - mine.first;
        if (columns == 0) continue;
      } else {
        base = pass * PASS_ROWS, first += base, columns = min(columns - base, PASS_ROWS);
      }
      return;
    }
  }

  __device__ __forceinline__ void next() {
    if (!last_group()) {
      ++group;
      return;
    }
    group = 0, left -= n();
    if (left == 0) ++part, enter();
  }
};

// Leaves the sums of this warp and pass in `sums` f32[group][lane][4].
template <typename Next>
__device__ __forceinline__ void multiply_wide(Block& b, const Task& t, const Walker& walk, u32 pass, float* sums, Next next_chunk) {
  constexpr u32 AHEAD = MK_BULK ? 4 : PASSES ? 2 : 3, NOBODY = ~0u;  // units whose activations are under way; one more spills below sm_90
  const Model& p = b.p;
  u32 lane = b.lane, f0 = b.warp * 4;
  const uint2* v = (const uint2*)(t.op == O_PROJ        ? p.attention
                                  : t.op == DENSE_DOWN  ? p.dense_hidden
                                  : t.op == EXPERT_DOWN ? p.expert_hidden
                                                        : p.normed);
  Units units(b, t, walk, pass), reads = units;
  auto read = [&](uint2 (&to)[4]) {
    u32 width = reads.width(), column = reads.group * ROWS + (lane >> 2);
    bool mine = reads.left && column < reads.columns;
    const uint2* from = reads.part < reads.parts ? v + (u64)reads.part * (GROUPS * 32) * width : (const uint2*)p.shared_hidden;
    u32 at = t.op == EXPERT_UP && mine ? reads.row(column) : reads.base + column;
    from += ((at >> 3) * width + width - reads.left + f0) * 32 + (at & 7) * 4 + (lane & 3);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) to[i] = mine && f0 + i < reads.left ? __ldcg(from + i * 32) : make_uint2(0, 0);
    if (reads.left) reads.next();
  };
#pragma unroll
  for (u32 g = 0; g < PASS_GROUPS; ++g) ((float4*)sums)[g * 32 + lane] = make_float4(0, 0, 0, 0);
  __syncwarp();
  uint2 held[AHEAD][4];
#pragma unroll
  for (u32 i = 0; i < AHEAD; ++i) read(held[i]);
  const uint4* weights = nullptr;
  while (units.left) {
#pragma unroll
    for (u32 j = 0; j < AHEAD; ++j) {
      if (units.left == 0) break;
      if (units.group == 0) weights = (const uint4*)next_chunk.wait() + f0 * 32 + lane;
      bool scattered = t.op == EXPERT_DOWN && units.listed();  // columns are rows of the step, and their sums lie there
      u32 at[2];  // of the lane's two columns among the sums
#pragma unroll
      for (u32 k = 0; k < 2; ++k) {
        u32 column = units.group * ROWS + (lane & 3) * 2 + k, row = column;
        if (scattered) row = column < units.columns ? units.row(column) - pass * PASS_ROWS : NOBODY;
        at[k] = row == NOBODY ? NOBODY : ((row >> 3) * 32 + (lane & ~3) + ((row & 7) >> 1)) * 4 + (row & 1);
      }
      float c[4];
#pragma unroll
      for (u32 k = 0; k < 4; ++k) c[k] = at[k & 1] != NOBODY ? sums[at[k & 1] + (k & 2)] : 0;
#pragma unroll
      for (u32 i = 0; i < 4; ++i)
        if (f0 + i < units.left) ptx::mma(c, weights[i * 32], held[j][i].x, held[j][i].y);
#pragma unroll
      for (u32 k = 0; k < 4; ++k)
        if (at[k & 1] != NOBODY) sums[at[k & 1] + (k & 2)] = c[k];
      if (t.op == EXPERT_DOWN) __syncwarp();  // the next part's columns are other lanes'
      if (units.last_group()) next_chunk.release();
      units.next();
      read(held[j]);
    }
  }
}
