// The math warps: tensor-core products over chunks as they land.  Each leaves its partial tile to the task's storer.
#pragma once
#include "dense.cuh"

struct Math {
  Block& b;
  Walker walk;
  Place place;     // of the next chunk
  u32 tiles = 0;   // finished tiles of each storer, four counts of 8 bits
  u32 q_next = 0;
  bool failed = false;
  bool first = false;  // the next chunk is the first of its task

  __device__ __forceinline__ explicit Math(Block& block) : b(block), walk(block, ROLE_MATH) {}

  // The ring as an op sees it: wait for the next chunk, read it, release it.
  struct Next {
    Math& m;
    const Task& t;
    __device__ __forceinline__ const char* wait() {
      Block& b = m.b;
      u32 stage = m.place.stage;
#if MK_TRACE
      u32 landed = m.first && b.warp == 0 ? m.landed() : 0;
#endif
      if (!m.failed && !m.walk.wait.barrier(b.s.full[stage], m.place.phase, t.id, m.walk.step)) m.failed = true;
#if MK_TRACE
      if (b.warp == 0 && b.lane == 0 && (m.first || MK_TRACE > 1)) {
        u32 now = ptx::cycles();
        Stamp& s = stamp_of(b, m.walk.work);
        if (m.first) s.begin = s.first_chunk = now, s.landed = landed;
        s.last_chunk = now;
      }
      m.first = false;
#endif
      return b.ring + stage * CHUNK;
    }
    __device__ __forceinline__ void release() {
      __syncwarp();
      if (m.b.lane == 0 && !m.failed) ptx::arrive(ptx::shared_address(&m.b.s.empty[m.place.stage]));
      m.place.next(m.b.p.stages);
    }
  };

#if MK_TRACE
  // At a task's first chunk, before waiting for it: which of the ring's chunks have landed, one stage a lane.
  __device__ __forceinline__ u32 landed() const {
    u32 n = b.p.stages, stage = place.stage + b.lane, over = stage >= n;
    return __ballot_sync(~0u, b.lane < n && ptx::phase_over_now(ptx::shared_address(&b.s.full[stage - (over ? n : 0)]), place.phase ^ over));
  }
#endif

  __device__ __forceinline__ bool block(const Task& t, u32 index) {
    u32 storer = t.order & (STORERS - 1), n = tiles >> (8 * storer) & 255, buffer = n & 1;
    if (!walk.wait.barrier(b.s.tile_empty[storer][buffer], ((n >> 1) & 1) ^ 1, t.id, walk.step)) return false;
    Tile& tile = b.s.tile[storer][buffer];
    Next next{*this, t};
    if (t.op == ATTENTION) {
      if (!attention_math(b, t, walk, q_next & 1, tile, next)) return false;
    } else {
      float c[4] = {};
      if (t.op == O_PROJ || t.op == DENSE_DOWN || t.op == EXPERT_DOWN) {
        // one vector, or those of the active experts in turn and then that of the shared ones: a single accumulation
        u32 parts = t.op == EXPERT_DOWN ? walk.routing().count : 1;
        u64 v = t.op == O_PROJ ? b.p.attention : t.op == DENSE_DOWN ? b.p.dense_hidden : b.p.expert_hidden;
#pragma unroll 1
        for (u32 part = 0; part < parts + (t.tail != 0); ++part, v += t.k16 * 256)
          multiply_streamed(b, c, (const uint2*)(part < parts ? v : b.p.shared_hidden), part < parts ? t.k16 : t.tail, next);
      } else {
        multiply_resident(b, c, t.k16, next);
      }
      tile.part[b.warp][b.lane] = make_float4(c[0], c[1], c[2], c[3]);
    }
    if (failed) return false;
    if (b.warp == 0 && b.lane == 0) tile.work = walk.work;
#if MK_TRACE
    if (b.warp == 0 && b.lane == 0 && index + 1 == t.blocks) stamp_of(b, walk.work).end = ptx::cycles();
#endif
    __syncwarp();
    if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.tile_full[storer][buffer]));
    tiles = (tiles & ~(255u << 8 * storer)) | ((n + 1) & 255) << 8 * storer;
    return true;
  }

  __device__ __forceinline__ bool task(const Task& t) {
    if (is_vector(t.op)) return true;
    if (walk.enter_routed(t) && !walk.await_routing(t)) return false;
    if (!walk.has_work(t)) return true;
    if (!walk.wait.barrier(b.s.ready[walk.work % SLOTS], (walk.work / SLOTS) & 1, t.id, walk.step)) return false;
    jitter(b.p, b.sm * 8 + 2, t.id * 8 + b.warp);
    first = true;
    for (u32 i = 0; i < t.blocks; ++i)
      if (!block(t, i)) return false;
    if (t.op == ATTENTION) ++q_next;
    __syncwarp();
    if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.done[walk.work % SLOTS]));
    ++walk.work;
    return true;
  }

  __device__ __forceinline__ void run() {
    for (; walk.step < b.p.steps; ++walk.step) {
      if (!walk.next_step()) return;
      for (u32 i = 0; i < b.count; ++i)
        if (!task(walk.task(i))) return;
    }
  }
};
