// The storers: reduce a finished tile in fixed order, do the op's last step, store, signal, leave the record.  Tasks without
// products (EMBED, MERGE, PICK) are theirs alone.  Task i of the SM's list belongs to storer i mod 4.
#pragma once
#include "dense.cuh"

struct Storer {
  Block& b;
  Walker walk;
  u32 index, tiles = 0;
#if MK_TRACE
  mkviz::Ring ring;
#endif

  __device__ __forceinline__ explicit Storer(Block& block)
      : b(block), walk(block, ROLE_STORER), index(block.warp - STORER0)
#if MK_TRACE
        , ring((Record*)block.p.records, (Live*)block.p.live, (const u64*)block.p.limit, block.p.ring_capacity, block.sm * STORERS + index)
#endif
  {}

  __device__ __forceinline__ u64 step_number() const { return ((u64)b.p.step_high << 32 | b.p.step_low) + walk.step; }

  // -- tasks without products

  __device__ __forceinline__ void embed(const Task& t) {
    const Params& p = b.p;
    for (u32 row = t.a; row < min(t.b, p.rows); ++row) {
      u32 token = __ldcg((const u32*)p.token + row);
      float2* x = (float2*)x_of(p, 0, row);
      for (u32 k = b.lane * 2; k < p.hidden; k += 64) {
        u32 pair = __ldg((const u32*)p.embed + packed_index(token, k, p.hidden / 16) / 2);
        x[k / 2] = make_float2(from_bf16(pair & 0xffff), from_bf16(pair >> 16));
      }
    }
  }

  __device__ __forceinline__ void pick(const Task& t) {
    const Params& p = b.p;
    for (u32 row = t.a; row < min(t.b, p.rows); ++row) {
      float best = NEG_INF;
      u32 token = ~0u;
      for (u32 i = b.lane; i < p.head_tiles; i += 32) {
        float v = __ldcg((const float*)p.tile_max + row * p.head_tiles + i);
        if (token == ~0u || v > best) best = v, token = __ldcg((const u32*)p.tile_arg + row * p.head_tiles + i);
      }
      for (u32 o = 16; o; o >>= 1) {
        float v = __shfl_xor_sync(~0u, best, o);
        u32 other = __shfl_xor_sync(~0u, token, o);
        if (other != ~0u && (token == ~0u || v > best || (v == best && other < token))) best = v, token = other;
      }
      if (b.lane == 0) {
        ((u32*)p.greedy)[walk.step * ROWS + row] = token;
        if (walk.step + 1 < p.steps) ((u32*)p.token)[row] = token;
      }
    }
    // one task decides for the whole grid whether the next step is run
    if (t.tile == 0 && b.lane == 0 && walk.step + 1 < p.steps) ((u32*)p.go)[walk.step + 1] = *(volatile u32*)p.stop == 0;
  }

  __device__ __forceinline__ bool vector_task(const Task& t, u32& last_wait) {
    last_wait = mkviz::NO_WAIT;
    for (u32 i = 0; i < t.waits; ++i) {
      u32 target = walk.target(t.wait_arrivals[i], t.need[i]);
      if ((int)(ptx::load_acquire((const u32*)b.p.counters + t.wait[i] * 32) - target) >= 0) continue;
      last_wait = i;
      if (!walk.wait.counter(t.wait[i], target, t.id, walk.step)) return false;
    }
    __syncwarp();
    return true;
  }

  __device__ __forceinline__ bool vector_run(const Task& t) {
    if (t.a >= b.p.rows) return false;
    if (t.op == EMBED) embed(t);
    else if (t.op == PICK) pick(t);
    else
      for (u32 row = t.a; row < min(t.b, b.p.rows); ++row) merge(b, t, row, walk.position(row));
    return true;
  }

  // -- finished tiles

  __device__ __forceinline__ bool tile_task(const Task& t, u32& work) {
    Best best = {{0, 0}, {~0u, ~0u}};
    for (u32 block = 0; block < t.blocks; ++block, ++tiles) {
      u32 buffer = tiles & 1;
      if (!walk.wait.barrier(b.s.tile_full[index][buffer], (tiles >> 1) & 1, t.id, walk.step)) return false;
      const Tile& tile = b.s.tile[index][buffer];
      work = tile.work;
      if (t.op == ATTENTION) {
        attention_store(b, t, tile);
      } else {
        TileValues y = sum_tile(tile, b.lane);
        finish(t, block, y, best);
      }
      __syncwarp();
      if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.tile_empty[index][buffer]));
    }
    if (t.op == LM_HEAD) lm_head_finish(b, t, b.p.rows, best);
    return true;
  }

  __device__ __forceinline__ void finish(const Task& t, u32 block, const TileValues& y, Best& best) {
    u32 rows = b.p.rows;
    if (t.op == QKV) {
      qkv_store(b, t, block, y, rows, walk);
    } else if (t.op == O_PROJ) {
      o_proj_store(b, t, block, y, rows);
    } else if (t.op == ROUTER) {
      router_store(b, t, block, y, rows);
    } else if (t.op == EXPERT_DOWN || t.op == DENSE_DOWN) {
      down_store(b, t, block, y, rows);
    } else if (t.op == LM_HEAD) {
      lm_head_store(b, t, block, y, rows, best);
    } else {
      up_store(b, t, block, y, rows, walk.routing());
    }
  }

  __device__ __forceinline__ bool task(const Task& t) {
    if (walk.enter_routed(t) && !walk.await_routing(t)) return false;
    if ((t.order & (STORERS - 1)) != index) return true;
#if MK_TRACE
    Stamp s;
#endif
    u32 last_wait, work = 0;
    bool worked;
    if (is_vector(t.op)) {
      jitter(b.p, b.sm * 8 + 3, t.id);
#if MK_TRACE
      s.ns = (u32)ptx::global_ns(), s.claim = ptx::cycles();
#endif
      if (!vector_task(t, last_wait)) return false;
#if MK_TRACE
      s.ready = s.begin = ptx::cycles(), s.last_wait = last_wait, s.landed = 1;
#endif
      worked = vector_run(t);
#if MK_TRACE
      s.end = ptx::cycles();
#endif
    } else {
      worked = walk.has_work(t);
      if (worked) {
        if (!tile_task(t, work)) return false;
        jitter(b.p, b.sm * 8 + 4, t.id);
      }
    }
    __syncwarp();
    if (b.lane == 0) {
#if MK_TRACE
      u32 publish = ptx::cycles();
#endif
      ptx::fence();
      for (u32 i = 0; i < t.raises; ++i) ptx::add_relaxed((u32*)b.p.counters + t.raise[i] * 32);
#if MK_TRACE
      ring.publish();
      if (!is_vector(t.op)) {
        if (worked) s = stamp_of(b, work);  // read only now: the consumers are already on their way
        else s.ns = (u32)ptx::global_ns(), s.claim = s.ready = s.begin = s.end = publish, s.last_wait = mkviz::NO_WAIT, s.landed = 1;
      }
      u32 fill = worked && !is_vector(t.op) ? min(15u, __popc(s.landed) * 16 / b.p.stages) : 0, kind = worked ? mkviz::TASK : mkviz::SKIPPED;
      u32 flags = kind | (t.raises ? 0u : (u32)mkviz::COVERED) | (s.landed & 1 ? 0u : (u32)mkviz::BYTES_LAST);
      ring.write(t.id, (u32)step_number() & 1023, s.ns, s.ready - s.claim, s.begin - s.claim, s.end - s.claim, publish - s.claim,
                 s.last_wait, fill, flags);
#endif
#if MK_TRACE > 1  // ready: its first chunk was seen landed; publish: its last chunk; begin, end: first and last math
      if (worked && !is_vector(t.op))
        ring.write(t.id, (u32)step_number() & 1023, s.ns, s.first_chunk - s.claim, s.begin - s.claim, s.end - s.claim,
                   s.last_chunk - s.claim, mkviz::NO_WAIT, fill, mkviz::PHASES);
#endif
    }
    __syncwarp();
    return true;
  }

  __device__ __forceinline__ void run() {
    for (; walk.step < b.p.steps; ++walk.step) {
      if (!walk.next_step()) return;
#if MK_TRACE
      if (b.lane == 0) {
        ring.step(step_number());
        if ((walk.step & 31) == 0) ring.anchor(step_number());
      }
#endif
      for (u32 i = 0; i < b.count; ++i)
        if (!task(walk.task(i))) return;
#if MK_TRACE
      if (b.lane == 0) ring.step(step_number() + 1);
#endif
    }
  }
};
