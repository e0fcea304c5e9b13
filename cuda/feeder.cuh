// The feeders: wait for a task's counters, and have its activations in shared memory before math is told to begin.
#pragma once
#include "one_row.cuh"

struct Feeder {
  static constexpr u32 STRIDE = FEEDERS * 32;
  Block& b;
  Walker walk;
  u32 thread, done = 0;           // tasks with work that math has finished
  u32 x_tag = ~0u, x_last = 0;    // what the resident activations are (step, layer, norm), and the last task that reads them
  u32 q_next = 0, q_last = 0, q_before = 0;  // attention tasks so far; the last two tasks that read a q buffer
  u32 heads_tag = ~0u, heads_last = 0;  // the heads in shared memory, and the last task that reads them
  u32 seen[2] = {NO_COUNTER, NO_COUNTER}, seen_step = ~0u;  // counters that were there in this step, the last two

  __device__ __forceinline__ explicit Feeder(Block& block)
      : b(block), walk(block, ROLE_FEEDER), thread((block.warp - FEEDER0) * 32 + block.lane) {}

  __device__ __forceinline__ bool team() { return walk.meet(b.s.feeder_team); }

  // Until math has finished the first `tasks` tasks with work.
  __device__ __forceinline__ bool finished(u32 tasks, const Task& t) {
    for (; (int)(done - tasks) < 0; ++done)
      if (!walk.wait.barrier(b.s.done[done % SLOTS], (done / SLOTS) & 1, t.id, walk.step)) return false;
    return true;
  }

#if MK_ROWS == 1
  // Norm of x (or mid) into the resident activations, as bf16: RMSNorm, or LayerNorm without bias.  All feeders share the row; sums are
  // of threads, then lanes, then warps, always in the same order (norm.cuh, for steps of more rows, has the same).
  static constexpr u32 HELD = 6;  // float4 a thread holds at a time
  static constexpr u32 KEPT = MK_BULK ? (MK_TRACE ? 1 : 2) : 0;  // of the weights', before x is there; as registers allow

  __device__ __forceinline__ float together(u32 pass) const {
    float all = 0;
#pragma unroll
    for (u32 i = 0; i < FEEDERS; ++i) all += b.s.norm[pass][i];
    return all;
  }

  __device__ __forceinline__ bool norm(const Task& t, u32 layer, bool second) {
    const Model& p = b.p;
    const u64* from = (const u64*)(second ? p.mid : p.x);
    const float4* weight = norm_weight(b, layer, second);
    u32 n = p.hidden / 4, warp = thread >> 5, polls = 0, tag = walk.tag(layer);
    auto weight_of = [&](u32 at) { return at < n ? __ldg(weight + at) : make_float4(0, 0, 0, 0); };
    bool loaded = false;
    float mean = 0, scale = 0;
    float4 v[HELD], kept[KEPT ? KEPT : 1];
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) kept[i] = weight_of(i * STRIDE + thread);
#pragma unroll 1
    for (u32 pass = p.centre ? 0 : 1;; ++pass) {  // 0: mean; 1: mean square of what is left; 2: what comes of it
      float sum = 0;
#pragma unroll 1
      for (u32 base = 0; base < n; base += HELD * STRIDE) {
        if (!loaded) {
          auto some = [&](auto& w, u32 first) {  // of the thread's float4 from the first on, two accesses each
            constexpr u32 N = sizeof(w) / sizeof(w[0]);
            u32 element = base + first * STRIDE + thread;
            auto mine = [&](u32 k) { return element + (k >> 1) * STRIDE < n; };
            auto at = [&](u32 k) { return from + (element + (k >> 1) * STRIDE) * 4 + (k & 1) * 2; };
            if (!read_tagged(walk, t, 0, tag, w, polls, mine, at)) return false;
#pragma unroll
            for (u32 k = 0; k < N / 2; ++k)
              v[first + k] = make_float4(__uint_as_float(w[2 * k].x), __uint_as_float(w[2 * k].z), __uint_as_float(w[2 * k + 1].x),
                                         __uint_as_float(w[2 * k + 1].z));
            return true;
          };
          uint4 one[2], two[4];  // all SMs poll this: a little of it, until that is there
          static_assert(HELD == 6, "one, two, two and one");
          if (!some(one, 0) || !some(two, 1) || !some(two, 3) || !some(one, 5)) return false;
          if (pass == (p.centre ? 0 : 1)) ready(polls);
        }
        loaded = n <= HELD * STRIDE;
        if (pass < 2) {
#pragma unroll
          for (u32 i = 0; i < HELD; ++i) {
            if (base + i * STRIDE + thread >= n) break;
            float4 d = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
            sum += pass ? sum_of_squares(d) : d.x + d.y + d.z + d.w;
          }
        } else {
          float4 w[HELD];
#pragma unroll
          for (u32 i = 0; i < HELD; ++i) w[i] = i < KEPT && base == 0 ? kept[i] : weight_of(base + i * STRIDE + thread);
#pragma unroll
          for (u32 i = 0; i < HELD; ++i) {
            u32 at = base + i * STRIDE + thread;
            if (at >= n) break;
            b.x[tagged_word(at * 4)] = pack_bf16((v[i].x - mean) * scale * w[i].x, (v[i].y - mean) * scale * w[i].y);
            b.x[tagged_word(at * 4 + 2)] = pack_bf16((v[i].z - mean) * scale * w[i].z, (v[i].w - mean) * scale * w[i].w);
          }
        }
      }
      if (pass == 2) return true;
      for (u32 o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
      if (b.lane == 0) b.s.norm[pass][warp] = sum;
      if (!team()) return false;
      if (pass == 0) mean = together(0) / p.hidden;
      else scale = rsqrtf(together(1) / p.hidden + p.eps);
    }
  }
#endif

  // All that the task waits for is there.  `polls`: of its data, where it waits for the data itself.
  __device__ __forceinline__ void ready(u32 polls, u32 last_wait = mkviz::NO_WAIT) {
#if MK_TRACE
    if (thread) return;
    Stamp& s = stamp_of(b, walk.work);
    s.ready = ptx::cycles(), s.last_wait = polls ? 0 : last_wait;
#endif
  }

  // Lane 0 of each feeder polls for its warp: sooner than if one did for all and had to tell them.
  __device__ __forceinline__ bool counters(const Task& t, u32& last_wait) {
    last_wait = mkviz::NO_WAIT;
    bool there = true;
    if (b.lane == 0) {
      for (u32 i = 0; i < t.waits && there; ++i) {
        u32 target = walk.target(t.wait_arrivals[i], t.need[i]);
        if (walk.wait.seen(t.wait[i], target)) continue;
        last_wait = i;
#if MK_TRACE
        if (thread == 0) ((RoleState*)b.p.states)[b.sm * ROLE_LINES + ROLE_FEEDER] = {t.id, mkviz::WAITING, t.wait[i], target};
#endif
        there = walk.wait.counter(t.wait[i], target, t.id, walk.step);
      }
    }
    return __shfl_sync(~0u, there, 0);
  }

  __device__ __forceinline__ bool task(const Task& t) {
    if (is_vector(t.op)) return true;
    if (walk.enter_routed(t.routed) && !walk.await_routing(t.id)) return false;
    if (!walk.has_work(t)) return true;
    if (walk.work >= SLOTS && !finished(walk.work - SLOTS + 1, t)) return false;
    jitter(b.p, b.sm * 8 + 1, t.id);
#if MK_TRACE
    if (thread == 0) claim(b, walk.work);
#endif
    // a counter that was there once is there for the rest of the step: most tasks of a layer wait for what the first one saw
    if (!ONE && walk.step != seen_step) seen[0] = seen[1] = NO_COUNTER, seen_step = walk.step;
    bool second = !b.p.parallel && t.op != QKV && t.op != LM_HEAD, fresh = false;
    u32 layer = t.op == LM_HEAD ? b.p.layer_count : t.layer, tag = walk.tag(layer) * 2 + second;
    if (!WIDE && reads_x(t.op) && tag != x_tag) fresh = true;
    if (fresh) prefetch_norm(b, layer, second, thread, STRIDE);
    bool works = fresh || t.op == ATTENTION || (ONE && t.op == O_PROJ && heads_tag != walk.tag(t.layer));
    bool known = ONE || (!works && thread >= 32);  // who has nothing to do leaves the wait to warp 0
    if (!known) {
      known = true;
      for (u32 i = 0; i < t.waits; ++i) known = known && (t.wait[i] == seen[0] || t.wait[i] == seen[1]);
    }
    u32 last_wait = mkviz::NO_WAIT;
    if (!known) {
      if (!counters(t, last_wait)) return false;
      seen[0] = t.wait[0], seen[1] = t.waits > 1 ? t.wait[1] : seen[1];
    }
    if (!ONE || !works) ready(0, last_wait);
#if MK_TRACE && MK_ROWS == 1
    if (works && thread == 0)
      ((RoleState*)b.p.states)[b.sm * ROLE_LINES + ROLE_FEEDER] = {t.id, mkviz::WAITING, t.wait[0], walk.target(t.wait_arrivals[0], t.need[0])};
#endif
    if (!WIDE && reads_x(t.op)) {
      if (fresh) {
        if (!finished(x_last, t)) return false;
#if MK_ROWS == 1
        if (!norm(t, layer, second)) return false;
#endif
        x_tag = tag;
      }
      x_last = walk.work + 1;
    } else if (t.op == ATTENTION) {
      u32 buffer = q_next & 1;
      if (!finished(q_before, t)) return false;
#if MK_ROWS == 1
      u32 polls = 0;
      if (!one::attention_feed(b, t, walk, buffer, thread, polls)) return false;
      ready(polls);
#else
      if (!WIDE) attention_feed(b, t, t.a, buffer, thread);
      for (u32 row = t.a, left = WIDE ? walk.rows_of(t) : 0; left; --left, ++row)
        if (walk.keys(t, row).pages) attention_feed(b, t, row, buffer, thread);
#endif
      q_before = q_last, q_last = walk.work + 1, ++q_next;
    }
#if MK_ROWS == 1
    if (t.op == O_PROJ) {
      if (heads_tag != walk.tag(t.layer)) {
        u32 polls = 0;
        if (!finished(heads_last, t) || !one::gather_heads(b, t, walk, thread, polls)) return false;
        ready(polls);
        heads_tag = walk.tag(t.layer);
      }
      heads_last = walk.work + 1;
    } else if (t.op == DENSE_DOWN || t.op == EXPERT_DOWN) {  // the hidden layer takes the place of the heads
      heads_tag = ~0u, heads_last = walk.work + 1;
    }
#endif
#if MK_ROWS == 8
    if (thread == 0) b.s.fresh[walk.work % SLOTS] = fresh;
#endif
    __syncwarp();
    if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.ready[walk.work % SLOTS]));
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
