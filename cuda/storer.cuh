// The storers: reduce a finished tile in fixed order, do the op's last step, store, signal, leave the record.  Tasks without
// products (is_vector in block.cuh) are theirs alone.  The host says whose each task is (engine/cuda/program.py).
#pragma once
#include "dense.cuh"
#if MK_SAMPLING
#include "pick.cuh"
#endif
#if MK_ROWS > 1
#include "routing.cuh"
#endif
#if MK_ROWS > 8
#include "norm.cuh"
#include "wide.cuh"
#endif
#if MK_QK_NORM
#include "head_norm.cuh"
#endif

struct Storer {
  Block& b;
  Walker walk;
  u32 index, tiles = 0;
  u32 routed;  // routed layers of the whole list
  u32 first;   // of the list's tasks that are this storer's

  __device__ __forceinline__ explicit Storer(Block& block) : b(block), walk(block, ROLE_STORER), index(block.warp - STORER0) {
    routed = b.count() ? b.tasks()[b.count() - 1].routed : 0;
    first = __ldg((const u32*)b.p.storer_first + b.sm * STORERS + index);
#if MK_TRACE
    if (b.lane == 0)
      ring() = mkviz::Ring((Record*)b.p.records, (Live*)b.p.live, (const u64*)b.p.limit, b.p.ring_capacity, b.sm * STORERS + index);
#endif
  }

  __device__ __forceinline__ mkviz::Ring& ring() { return b.s.ring[index]; }

  __device__ __forceinline__ u64 step_number() const { return ((u64)b.p.step_high << 32 | b.p.step_low) + walk.step; }

  // Go along with the routed layers of the list, whether this storer has a task there or not.
  __device__ __forceinline__ bool enter(u32 routed_by_then, u32 task) {
    while (walk.enter_routed(routed_by_then))
      if (!walk.await_routing(task)) return false;
    return true;
  }

  // -- tasks without products

  static constexpr u32 AT_ONCE = MK_SAMPLING ? 8 : 16;  // reads under way together, each about a microsecond; as registers allow

  __device__ __forceinline__ void embed(const Task& t) {
    const Model& p = b.p;
    for (u32 row = t.a; row < min(t.b, p.rows); ++row) {
      u32 token = __ldcg((const u32*)p.token + row);
      float2* x = (float2*)x_of(p, 0, row);
#pragma unroll 1
      for (u32 first = b.lane * 2; first < p.hidden; first += 64 * AT_ONCE) {
        u32 pair[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i)
          if (first + i * 64 < p.hidden) pair[i] = __ldg((const u32*)p.embed + packed_index(token, first + i * 64, p.hidden / 16) / 2);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i)
          if (first + i * 64 < p.hidden) {
            float2 v = make_float2(from_bf16(pair[i] & 0xffff), from_bf16(pair[i] >> 16));
            if (ONE) ptx::store_tagged2((u64*)p.x + first + i * 64, __float_as_uint(v.x), __float_as_uint(v.y), walk.tag(0));
            else x[first / 2 + i * 32] = v;
          }
      }
    }
  }

  __device__ __forceinline__ void pick(const Task& t) {
    const Model& p = b.p;
    for (u32 row = t.a; row < min(t.b, p.rows); ++row) {
      const float* tops = (const float*)p.tile_max + row * p.head_tiles;
      float best = NEG_INF;
      u32 tile = 0;  // of equal ones the first: its tokens are the lower ones
#pragma unroll 1
      for (u32 first = b.lane; first < p.head_tiles; first += 32 * AT_ONCE) {
        float v[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) v[i] = first + i * 32 < p.head_tiles ? __ldcg(tops + first + i * 32) : NEG_INF;
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i)
          if (v[i] > best) best = v[i], tile = first + i * 32;
      }
      for (u32 o = 16; o; o >>= 1) {
        float v = __shfl_xor_sync(~0u, best, o);
        u32 other = __shfl_xor_sync(~0u, tile, o);
        if (v > best || (v == best && other < tile)) best = v, tile = other;
      }
      u32 token = __ldcg((const u32*)p.tile_arg + row * p.head_tiles + tile);
#if MK_SAMPLING
      Told& told = ((Told*)p.told)[walk.step * MAX_ROWS + row];
      token = pick_row(p, row, walk.position(row), p.sample_parts, best, token, told, b.lane);
      if (token == LEFT_TO_HOST && b.lane == 0 && walk.step + 1 < p.steps) ((u32*)p.go)[walk.step + 1] = 0;
#endif
      if (b.lane == 0) {
        ((u32*)p.greedy)[walk.step * MAX_ROWS + row] = token;
        if (walk.step + 1 < p.steps) ((u32*)p.token)[row] = token;
      }
    }
#if MK_SAMPLING
    // every step goes on, as the host has written, unless a pick says no
    if (t.tile == 0 && b.lane == 0 && walk.step + 1 < p.steps && *(volatile u32*)p.stop) ((u32*)p.go)[walk.step + 1] = 0;
#else
    // one task decides for the whole grid whether the next step is run
    if (t.tile == 0 && b.lane == 0 && walk.step + 1 < p.steps) ((u32*)p.go)[walk.step + 1] = *(volatile u32*)p.stop == 0;
#endif
  }

  __device__ __forceinline__ bool vector_task(const Task& t, u32& last_wait) {
    last_wait = mkviz::NO_WAIT;
    for (u32 i = 0; i < t.waits; ++i) {
      u32 target = walk.target(t.wait_arrivals[i], t.need[i]);
      if (walk.wait.seen(t.wait[i], target)) continue;
      last_wait = i;
      if (!walk.wait.counter(t.wait[i], target, t.id, walk.step)) return false;
    }
    __syncwarp();
    return true;
  }

  __device__ __forceinline__ bool vector_run(const Task& t) {
    if (t.a >= b.p.rows) return false;
#if MK_SAMPLING
    if (t.op == SAMPLE) {
      bool worked = false;
      for (u32 row = t.a; row < min(t.b, b.p.rows); ++row) worked |= sample(b.p, row, t.c, b.p.sample_parts, b.lane);
      return worked;
    }
#endif
#if MK_ROWS > 8
    if (t.op == NORM) {
      for (u32 row = t.a; row < min(t.b, b.p.rows); ++row) norm_row(b, min(t.layer, b.p.layer_count), t.c, row, row);
      return true;
    }
#endif
#if MK_ROWS > 1
    if (t.op == TOP_K) {
      for (u32 row = t.a; row < min(t.b, b.p.rows); ++row) top_k_row(b.p, row, b.lane);
      return true;
    }
#endif
    if (t.op == EMBED) embed(t);
    else if (t.op == PICK) pick(t);
#if MK_ROWS != 1
    else
      for (u32 row = t.a; row < min(t.b, b.p.rows); ++row) merge(b, t, row, walk.position(row));
#endif
    return true;
  }

  // -- finished tiles

  // What O_PROJ and *_DOWN read is there when their last counter is, mostly long before their tile is.
  __device__ __forceinline__ bool ask_beside(const Task& t, u32 block, Beside& e) {
    u32 i = t.waits - 1;
    if (reads_residual(b.p, t.op) && !walk.wait.counter(t.wait[i], walk.target(t.wait_arrivals[i], t.need[i]), t.id, walk.step)) return false;
    e = beside(b, t, block, 0, walk);
    return true;
  }

#if MK_QK_NORM || MK_ROWS > 8
  // The next finished tile: its sums, and room for another.  False: the launch is given up.
  __device__ __forceinline__ bool next_tile(const Task& t, TileValues& y, u32& work) {
    u32 buffer = tiles & 1;
    if (!walk.wait.barrier(b.s.tile_full[index][buffer], (tiles >> 1) & 1, t.id, walk.step)) return false;
    const Tile& tile = b.s.tile[index][buffer];
    work = tile.work, y = sum_tile(tile, b.lane);
    __syncwarp();
    if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.tile_empty[index][buffer]));
    ++tiles;
    return true;
  }
#endif

#if MK_QK_NORM
  __device__ __forceinline__ bool head_task(const Task& t, u32& work) {
    Head head(b, t, index);
    TileValues y;
    u32 groups = WIDE ? (b.p.rows + ROWS - 1) / ROWS : 1;
#pragma unroll 1
    for (u32 block = 0; block < t.blocks; ++block)
#pragma unroll 1
      for (u32 group = 0; group < groups; ++group) {
        if (!next_tile(t, y, work)) return false;
        y.n += group * ROWS;
        head.add(block, group, y, walk);
      }
#pragma unroll 1
    for (u32 group = 0; group < groups; ++group) head.store(group, b.lane >> 2, group * ROWS + (b.lane & 3) * 2, walk);
    return true;
  }
#endif

#if MK_ROWS > 8
  __device__ __forceinline__ bool tile_task(const Task& t, u32& work) {
#if MK_QK_NORM
    if (t.op == QKV && t.a < b.p.heads + b.p.kv_heads) return head_task(t, work);
#endif
    if (t.op == ATTENTION) {
#pragma unroll 1
      for (u32 row = t.a, left = walk.rows_of(t); left; --left, ++row) {
        if (!walk.keys(t, row).pages) continue;
        u32 buffer = tiles & 1;
        if (!walk.wait.barrier(b.s.tile_full[index][buffer], (tiles >> 1) & 1, t.id, walk.step)) return false;
        const Tile& tile = b.s.tile[index][buffer];
        work = tile.work;
        attention_store(b, t, row, tile);
        __syncwarp();
        if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.tile_empty[index][buffer]));
        ++tiles;
      }
      return true;
    }
    u32 last = t.waits - 1;
    if (reads_residual(b.p, t.op) && !walk.wait.counter(t.wait[last], walk.target(t.wait_arrivals[last], t.need[last]), t.id, walk.step))
      return false;
    u32 groups = (columns_of(b, t, walk) + ROWS - 1) / ROWS;
#pragma unroll 1
    for (u32 block = 0; block < t.blocks; ++block)
#pragma unroll 1
      for (u32 group = 0; group < groups; ++group) {
        TileValues y;
        Beside e = beside(b, t, block, group * ROWS, walk);
        Best best = {};
        if (t.op == LM_HEAD) best = best_before(b, t, block, group * ROWS);
        if (!next_tile(t, y, work)) return false;
        y.n += group * ROWS;
        finish(t, block, y, e, best);
        if (t.op == LM_HEAD) lm_head_finish(b, t, b.p.rows, best, group * ROWS);
      }
    return true;
  }
#else
  __device__ __forceinline__ bool tile_task(const Task& t, u32& work) {
#if MK_QK_NORM
    if (t.op == QKV && t.a < b.p.heads + b.p.kv_heads) return head_task(t, work);
#endif
    Best best = {{0, 0}, {~0u, ~0u}};
    for (u32 block = 0; block < t.blocks; ++block, ++tiles) {
      u32 buffer = tiles & 1;
      Beside e;
#if MK_ROWS == 1
      if (!one::beside(b, t, block, walk, e)) return false;
#else
      if (MK_BULK && !ask_beside(t, block, e)) return false;  // below sm_90 there are no registers to spare for it so early
#endif
      if (!walk.wait.barrier(b.s.tile_full[index][buffer], (tiles >> 1) & 1, t.id, walk.step)) return false;
      if (!MK_BULK && !ONE) e = beside(b, t, block, 0, walk);
      const Tile& tile = b.s.tile[index][buffer];
      work = tile.work;
      if (t.op == ATTENTION) {
#if MK_ROWS > 1
        attention_store(b, t, t.a, tile);
#endif  // of one row math has done it
      } else {
        TileValues y = sum_tile(tile, b.lane);
        finish(t, block, y, e, best);
      }
      __syncwarp();
      if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.tile_empty[index][buffer]));
    }
    if (t.op == LM_HEAD) lm_head_finish(b, t, b.p.rows, best);
    return true;
  }
#endif

  __device__ __forceinline__ void finish(const Task& t, u32 block, const TileValues& y, const Beside& e, Best& best) {
    u32 rows = b.p.rows;
#if MK_ROWS == 1
    if (t.op == QKV) one::qkv_store(b, t, block, y, walk, e);
    else if (t.op == LM_HEAD) lm_head_store(b, t, block, y, rows, best);
    else if (t.op == EXPERT_UP || t.op == SHARED_UP || t.op == DENSE_UP)
      one::up_store(b, t, block, y, walk.routing(), walk.tag(t.layer));
    else one::row_store(b, t, block, y, walk, e);
#else
    if (t.op == QKV) {
      qkv_store(b, t, block, y, rows, walk, e);
    } else if (t.op == O_PROJ) {
      o_proj_store(b, t, block, y, rows, e);
    } else if (t.op == ROUTER) {
      router_store(b, t, block, y, rows);
    } else if (t.op == EXPERT_DOWN || t.op == DENSE_DOWN) {
      down_store(b, t, block, y, rows, e);
    } else if (t.op == LM_HEAD) {
      lm_head_store(b, t, block, y, rows, best);
    } else {
      up_store(b, t, block, y, rows, walk.routing(), e);
    }
#endif
  }

  // Whether all that the task leaves is tagged words: then its counter tells nobody but a report of a stuck launch.
  __device__ __forceinline__ bool hands_over(const Task& t) const {
    return t.op != LM_HEAD && t.op != PICK && t.op != SAMPLE && !(t.op == QKV && t.a >= b.p.heads);
  }

  __device__ __forceinline__ bool task(const Task& t) {
    if (!enter(t.routed, t.id)) return false;
    u32 last_wait, work = 0;
    bool worked, vector = is_vector(t.op);
#if MK_TRACE
    Stamp& alone = b.s.alone[index];
    auto mark = [&](u32& at) {
      if (b.lane == 0) at = ptx::cycles();
    };
#endif
    if (vector) {
      jitter(b.p, b.sm * 8 + 3, t.id);
#if MK_TRACE
      if (b.lane == 0) alone.ns = (u32)ptx::global_ns(), alone.landed = alone.late = 0;
      mark(alone.claim);
#endif
#if MK_ROWS == 1
      if (t.op == MERGE) {
        u32 polls = 0;
        last_wait = 0;
        if (!one::merge(b, t, walk, polls, [&] {
#if MK_TRACE
              mark(alone.ready);
#endif
            }))
          return false;
      } else
#endif
#if MK_ROWS > 8
      if (t.op == NORM) prefetch_norm(b, min(t.layer, b.p.layer_count), t.c, b.lane, 32);
#endif
      if (!vector_task(t, last_wait)) return false;
#if MK_TRACE
      if (b.lane == 0) alone.last_wait = last_wait;
      if (!ONE || t.op != MERGE) mark(alone.ready);
#endif
      worked = vector_run(t);
#if MK_TRACE
      mark(alone.end);
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
      bool early = ONE && hands_over(t);
      if (!early) ptx::fence();
#if MK_TRACE
      u32 publish = ptx::cycles();
#endif
      for (u32 i = 0; i < t.raises; ++i) ptx::add_relaxed((u32*)b.p.counters + t.raise[i] * 32);
#if MK_TRACE
      if (!early) ring().publish();  // what is written down from here on delays no consumer; tasks without a fence leave it to the next with one
      if (vector) alone.begin = alone.ready;
      else if (!worked) alone = {0, (u32)ptx::global_ns(), publish, publish, publish, publish, publish, mkviz::NO_WAIT, 0, 0};
      record(t, vector || !worked ? alone : stamp_of(b, work), publish, worked ? mkviz::TASK : mkviz::SKIPPED, vector);
#endif
    }
    __syncwarp();
    return true;
  }

#if MK_TRACE
  __device__ __forceinline__ void record(const Task& t, const Stamp& s, u32 publish, u32 kind, bool vector) {
    u32 step = (u32)step_number() & 1023, fill = min(15u, s.landed * 16 / b.p.stages);
    u32 flags = kind | (t.raises ? 0u : (u32)mkviz::COVERED) | (s.late ? (u32)mkviz::BYTES_LAST : 0u);
    ring().write(t.id, step, s.ns, s.ready - s.claim, s.begin - s.claim, s.end - s.claim, publish - s.claim, s.last_wait, fill, flags);
#if MK_TRACE > 1  // ready: its first chunk was seen landed; publish: its last chunk; begin, end: first and last math
    if (kind == mkviz::TASK && !vector)
      ring().write(t.id, step, s.ns, s.begin - s.claim, s.begin - s.claim, s.end - s.claim, s.last_chunk - s.claim, mkviz::NO_WAIT, fill,
                 mkviz::PHASES);
#endif
  }
#endif

  __device__ __forceinline__ void run() {
    for (; walk.step < b.p.steps; ++walk.step) {
      if (!walk.next_step()) return;
#if MK_TRACE
      if (b.lane == 0) {
        if (walk.step == 0) ring().step(step_number());  // later ones are as far as the end of the step before says
        if ((walk.step & 31) == 0) ring().anchor(step_number());
      }
#endif
      for (u32 i = first; i < b.count();) {
        const Task& t = walk.chained(i, i == first);
        i = t.next;
        if (!task(t)) return give_back();
      }
      if (!enter(routed, mkviz::NO_TASK)) return give_back();
#if MK_TRACE
      if (b.lane == 0) ring().step(step_number() + 1);
#endif
    }
  }

  // The launch is given up: the records so far may be read.
  __device__ __forceinline__ void give_back() {
#if MK_TRACE
    if (b.lane) return;
    ptx::fence();
    ring().publish();
#endif
  }
};
