// The math warps: tensor-core products over chunks as they land.  Each leaves its partial tile to the task's storer.
#pragma once
#include "one_row.cuh"
#if MK_ROWS == 8
#include "norm.cuh"
#endif
#if MK_ROWS > 8
#include "wide.cuh"
#endif

struct Math {
  Block& b;
  Walker walk;
  Place place;     // of the next chunk
  u32 tiles = 0;   // finished tiles of each storer, four counts of 8 bits
  u32 q_next = 0, last = 0;  // attention tasks so far; stage of the chunk that is given back later
  bool failed = false;
#if MK_ROWS == 1
  // Two teams of four warps take turns at the row blocks of what reads the normed residual, so that what lies between two blocks costs
  // one team time and not the SM.  Everything else all eight do together.
  u32 units = 0;           // such blocks so far
  u32 counts = 1;          // arrivals of a warp for a chunk and a tile: two where its team is alone
  static __device__ __forceinline__ u32 chunks_of(const Task& t) { return (t.k16 + CHUNK_K16 - 1) / CHUNK_K16; }  // of a block
  __device__ __forceinline__ bool theirs() const { return ((units ^ b.warp >> 2) & 1) != 0; }

  // Whether what lies ahead is told by one bit of a barrier's phase: of what the other team takes, only the last block before may be
  // unfinished, and the ring has room for that and this.
  __device__ __forceinline__ bool in_teams(const Task& t) const {
    return reads_x(t.op) && 2 * chunks_of(t) <= b.p.stages;
  }

  // Until the other team has finished its share of the first `n` blocks.  It may be at a wait for a counter, and of shared memory many
  // polls take no longer than one of a counter: the budget must be spent there first, where it is known what is missing.
  __device__ __forceinline__ bool other_team(u32 n, const Task& t) {
    u32 other = b.warp >> 2 ^ 1, target = (n + (other ^ 1)) / 2 * 4;
    for (u32 polls = 0; (int)(ptx::peek(b.s.turns[other]) - target) < 0; ++polls) {
      if ((polls & 63) == 63 && aborted(b.s.abort)) return false;
      if (polls / 256 > b.s.poll_budget) return give_up(ROLE_MATH, t.id, NO_COUNTER, 0, 0, walk.step);
    }
    return true;
  }

  __device__ __forceinline__ void finished_unit() {
    __syncwarp();
    if (b.lane == 0) ptx::bump(b.s.turns[b.warp >> 2]);
    ++units;
  }
#else
  static constexpr u32 counts = 1;
#endif

  __device__ __forceinline__ u32 tiles_of(u32 storer) const { return tiles >> (8 * storer) & 255; }
  __device__ __forceinline__ void finished_tile(u32 storer, u32 n) {  // the n-th
    tiles = (tiles & ~(255u << 8 * storer)) | ((n + 1) & 255) << 8 * storer;
  }

  __device__ __forceinline__ void arrive(u64& bar, u32 n) const {
    ptx::arrive(ptx::shared_address(&bar));
    if (n == 2) ptx::arrive(ptx::shared_address(&bar));
  }

  __device__ __forceinline__ explicit Math(Block& block) : b(block), walk(block, ROLE_MATH) {}

  // The ring as an op sees it: wait for the next chunk, read it, release it.
  struct Next {
    Math& m;
    const Task& t;
    __device__ __forceinline__ const char* wait() {
      Block& b = m.b;
      const Place& place = m.place;
      if (!m.failed && !m.walk.wait.barrier(b.s.full[place.stage], place.phase, t.id, m.walk.step)) m.failed = true;
#if MK_TRACE > 1
      m.last_chunk = ptx::cycles();
#endif
      return b.ring + place.stage * CHUNK;
    }
    // Of two that are read one behind the other: on to the second, and then the first is given back.
    __device__ __forceinline__ void release_later() { m.last = m.place.stage, m.place.next(m.b.p.stages); }
    __device__ __forceinline__ void release_last() {
      __syncwarp();
      if (m.b.lane == 0 && !m.failed) m.arrive(m.b.s.empty[m.last], m.counts);
    }
    __device__ __forceinline__ void release() {
      __syncwarp();
      if (m.b.lane == 0 && !m.failed) m.arrive(m.b.s.empty[m.place.stage], m.counts);
      m.place.next(m.b.p.stages);
    }
  };

#if MK_TRACE
  // Stamps cost a warp time, so the warps take turns, a task each: the others go on, and the ring lets them.  None is taken inside
  // the loops over chunks, which are slower for every instruction more.
#if MK_TRACE > 1
  u32 last_chunk = 0;
#endif

  __device__ __forceinline__ bool in_turn() const {
#if MK_ROWS == 1
    if (counts == 2) return (b.warp & 3) == (walk.work >> 1 & 3);
#endif
    return b.warp == (walk.work & (MATH_WARPS - 1));
  }

  // The task is ready.  Await its first chunk, as its first product will once more.
  __device__ __forceinline__ bool begin(const Task& t) {
    u32 first = ptx::shared_address(&b.s.full[place.stage]);
    bool late = __ballot_sync(~0u, ptx::phase_over_now(first, place.phase)) != ~0u;  // all lanes go the same way
    if (late && !wait_barrier(first, place.phase, ROLE_MATH, t.id, walk.step)) return false;
    u32 now = ptx::cycles(), landed = 0;
    if ((walk.work & (FILL_EVERY - 1)) == 0) landed = stages_landed();
    Stamp& s = stamp_of(b, walk.work);
    if (b.lane == 0) s.begin = now, s.landed = landed, s.late = late;
    return true;
  }

  // How many of the ring's chunks have landed, from the place on: one stage a lane, and barriers are looked at one by one.
  __device__ __forceinline__ u32 stages_landed() const {
    u32 n = b.p.stages, stage = place.stage + b.lane, over = stage >= n;
    bool here = b.lane < n && ptx::phase_over_now(ptx::shared_address(&b.s.full[stage - (over ? n : 0)]), place.phase ^ over);
    return __popc(__ballot_sync(~0u, here));
  }

  // At the task's end, before the storer is told.
  __device__ __forceinline__ void write_end(u32 end) {
    Stamp& s = stamp_of(b, walk.work);
    if (b.lane) return;
    s.end = end;
#if MK_TRACE > 1
    s.last_chunk = last_chunk;
#endif
  }
#endif

  // Of a projection back into the residual: one vector, or those of the active experts in turn and then that of the shared ones.
  __device__ __forceinline__ u64 activations(const Task& t) const {
    return t.op == O_PROJ ? b.p.attention : t.op == DENSE_DOWN ? b.p.dense_hidden : b.p.expert_hidden;
  }

  __device__ __forceinline__ Parts parts_of(const Task& t) const { return Parts(t.k16, t.op == EXPERT_DOWN ? walk.routing().count : 1, t.tail); }

#if MK_ROWS == 1
  // A hidden layer, which nobody awaits but who needs it.
  __device__ __forceinline__ bool gather(const Task& t) {
    if (t.op != DENSE_DOWN && t.op != EXPERT_DOWN) return true;
    u32 polls = 0;
    if (!one::gather(b, t, walk, (const u64*)activations(t), (const u64*)b.p.shared_hidden, parts_of(t), polls)) return false;
#if MK_TRACE
    if (in_turn() && b.lane == 0) {
      Stamp& s = stamp_of(b, walk.work);
      s.ready = ptx::cycles(), s.last_wait = polls ? 0 : mkviz::NO_WAIT;
    }
#endif
    return true;
  }
#endif

#if MK_ROWS == 8
  // Norms of x (or mid) into the resident activations, a row a warp, where the feeders say so: they have awaited that math is through
  // with what was there.
  __device__ __forceinline__ bool norm(const Task& t) {
    if (!b.s.fresh[walk.work % SLOTS]) return true;
    const Model& p = b.p;
    bool second = !p.parallel && t.op != QKV && t.op != LM_HEAD;
    u32 layer = t.op == LM_HEAD ? p.layer_count : t.layer;
    static_assert(MATH_WARPS >= ROWS, "a warp for each row");
    if (b.warp < p.rows) norm_row(b, layer, second, b.warp, b.x + b.warp * p.x_stride);
    return walk.meet(b.s.math_team);
  }
#endif

#if MK_ROWS > 8
  // The next tile of the task's storer, free to be written; null: the launch is given up.
  __device__ __forceinline__ Tile* open(const Task& t) {
    u32 storer = t.storer, n = tiles_of(storer);
    if (!walk.wait.barrier(b.s.tile_empty[storer][n & 1], ((n >> 1) & 1) ^ 1, t.id, walk.step)) return nullptr;
    return &b.s.tile[storer][n & 1];
  }

  __device__ __forceinline__ bool close(const Task& t, Tile& tile, bool last) {
    if (failed) return false;
    u32 storer = t.storer, n = tiles_of(storer);
#if MK_TRACE
    if (in_turn()) {
      if (b.lane == 0) tile.work = walk.work;
      if (last) write_end(ptx::cycles());
    }
#endif
    __syncwarp();
    if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.tile_full[storer][n & 1]));
    finished_tile(storer, n);
    return true;
  }

  // A 16-row block times all rows that it concerns, a tile for every eight of them.
  __device__ __forceinline__ bool block(const Task& t, u32 index) {
    const float4 (&sums)[PASS_GROUPS][32] = b.s.sums[b.warp];
    u32 groups = (columns_of(b, t, walk) + ROWS - 1) / ROWS;
#pragma unroll 1
    for (u32 g = 0; g < groups; ++g) {
      if (g % PASS_GROUPS == 0) multiply_wide(b, t, walk, g / PASS_GROUPS, (float*)sums, Next{*this, t});
      Tile* tile = open(t);
      if (!tile) return false;
      tile->part[b.warp][b.lane] = sums[g % PASS_GROUPS][b.lane];
      if (!close(t, *tile, index + 1 == t.blocks && g + 1 == groups)) return false;
    }
    return true;
  }

  // The split of every row of the task that has keys there, a tile each.
  __device__ __forceinline__ bool attention(const Task& t) {
    Next next{*this, t};
    u32 last = t.a;
    for (u32 row = t.a, left = walk.rows_of(t); left; --left, ++row)
      if (walk.keys(t, row).pages) last = row;
#pragma unroll 1
    for (u32 row = t.a; row <= last; ++row) {
      if (!walk.keys(t, row).pages) continue;
      Tile* tile = open(t);
      auto put = [&](const float (&c)[4]) { leave(*tile, b.warp, b.lane, c); };
      if (!tile || !attention_math(b, t, row, walk, q_next & 1, *tile, next, put) || !close(t, *tile, row == last)) return false;
    }
    ++q_next;
    return true;
  }
#else
  __device__ __forceinline__ bool block(const Task& t, u32 index) {
    u32 storer = t.storer, n = tiles_of(storer), buffer = n & 1;
    if (!walk.wait.barrier(b.s.tile_empty[storer][buffer], ((n >> 1) & 1) ^ 1, t.id, walk.step)) return false;
    Tile& tile = b.s.tile[storer][buffer];
    Next next{*this, t};
#if MK_TRACE
    u32 end;
#endif
#if MK_ROWS == 1
    if (counts == 2) {
      float c[2][4] = {};
      one::multiply_resident(b, c, t.k16, next);
#if MK_TRACE
      end = ptx::cycles();
#endif
#pragma unroll
      for (u32 i = 0; i < 2; ++i) leave(tile, (b.warp & 3) * 2 + i, b.lane, c[i]);
    } else
#endif
    if (t.op == ATTENTION) {
      auto put = [&](const float (&c)[4]) {
#if MK_ROWS == 1
        one::attention_store(b, t, tile, c, walk.tag(t.layer));
#else
        leave(tile, b.warp, b.lane, c);
#endif
      };
      if (!attention_math(b, t, t.a, walk, q_next & 1, tile, next, put)) return false;
#if MK_TRACE
      end = ptx::cycles();
#endif
    } else {
      float c[4] = {};
      if (t.op == O_PROJ || t.op == DENSE_DOWN || t.op == EXPERT_DOWN) {
        u64 v = activations(t);
        Parts parts = parts_of(t);
#if MK_ROWS == 1
        one::multiply(b, c, parts, next);
#else
        multiply_streamed(b, c, (const uint2*)v, (const uint2*)b.p.shared_hidden, parts, next);
#endif
      } else {
#if MK_ROWS == 1
        float (&all)[1][4] = *(float (*)[1][4])&c;
        one::multiply_resident(b, all, t.k16, next);
#else
        multiply_resident(b, c, t.k16, next);
#endif
      }
#if MK_TRACE
      end = ptx::cycles();  // read while the last products are under way
#endif
      leave(tile, b.warp, b.lane, c);
    }
    if (failed) return false;
#if MK_TRACE
    if (in_turn()) {
      if (b.lane == 0) tile.work = walk.work;
      if (index + 1 == t.blocks) write_end(end);
    }
#endif
    __syncwarp();
    if (b.lane == 0) arrive(b.s.tile_full[storer][buffer], counts);
    finished_tile(storer, n);
    return true;
  }
#endif

#if MK_ROWS == 1
  // A block that the other team takes.
  __device__ __forceinline__ void pass(const Task& t) {
    place.skip(chunks_of(t), b.p.stages);
    finished_tile(t.storer, tiles_of(t.storer));
    ++units;
  }

  __device__ __forceinline__ bool shared_task(const Task& t) {
    bool alone = t.blocks == 1;
    if (alone && theirs()) {
      pass(t), ++walk.work;
      return true;
    }
    if (!walk.wait.barrier(b.s.ready[walk.work % SLOTS], (walk.work / SLOTS) & 1, t.id, walk.step)) return false;
    jitter(b.p, b.sm * 8 + 2, t.id * 8 + b.warp);
    counts = 2;
#if MK_TRACE
    if (!theirs() && in_turn() && ((units && !other_team(units - 1, t)) || !begin(t))) return false;
#endif
    for (u32 i = 0; i < t.blocks; ++i) {
      if (theirs()) {
        pass(t);
        continue;
      }
      if ((units && !other_team(units - 1, t)) || !block(t, i)) return false;
      finished_unit();
    }
    counts = 1;
    __syncwarp();
    if (b.lane == 0) arrive(b.s.done[walk.work % SLOTS], alone ? 2 : 1);
    ++walk.work;
    return true;
  }
#endif

  __device__ __forceinline__ bool task(const Task& t) {
    if (is_vector(t.op)) return true;
    if (walk.enter_routed(t.routed) && !walk.await_routing(t.id)) return false;
    if (!walk.has_work(t)) return true;
#if MK_ROWS == 1
    if (in_teams(t)) return shared_task(t);
    if (!other_team(units, t)) return false;
#endif
    if (!walk.wait.barrier(b.s.ready[walk.work % SLOTS], (walk.work / SLOTS) & 1, t.id, walk.step)) return false;
    jitter(b.p, b.sm * 8 + 2, t.id * 8 + b.warp);
#if MK_ROWS == 1
    if (!gather(t)) return false;
#elif MK_ROWS == 8
    if (!norm(t)) return false;
#endif
#if MK_TRACE
    if (in_turn() && !begin(t)) return false;
#endif
#if MK_ROWS > 8
    if (t.op == ATTENTION) {
      if (!attention(t)) return false;
    } else
#endif
    for (u32 i = 0; i < t.blocks; ++i)
      if (!block(t, i)) return false;
    if (!WIDE && t.op == ATTENTION) ++q_next;
    __syncwarp();
    if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.done[walk.work % SLOTS]));
    ++walk.work;
    return true;
  }

  __device__ __forceinline__ void run() {
    walk.begin();
    for (; walk.step < b.p.steps; ++walk.step) {
      if (!walk.next_step()) return;
      for (u32 i = 0; i < b.count(); ++i)
        if (!task(walk.task(i))) return;
    }
  }
};
