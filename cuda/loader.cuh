// The loader: streams weights and KV pages into the ring, ahead of everybody, across tasks.  It waits for data only where it must
// know an address (routing), or where a page is written in this very step.
#pragma once
#include "dense.cuh"
#include "routing.cuh"

#if MK_ROWS > 8
#include "wide.cuh"
#endif

struct Loader {
  Block& b;
  Walker walk;
  u32 issued = 0;  // chunks so far
  Place place;     // of the next one

  __device__ __forceinline__ explicit Loader(Block& block) : b(block), walk(block, ROLE_LOADER) {}

  __device__ __forceinline__ bool chunk(const void* from, u32 bytes, const Task& t) {
    if (!walk.wait.barrier(b.s.empty[place.stage], place.phase ^ 1, t.id, walk.step)) return false;
    ptx::load_chunk(ptx::shared_address(b.ring + place.stage * CHUNK), from, bytes, ptx::shared_address(&b.s.full[place.stage]), b.lane);
    place.next(b.p.stages), ++issued;
    return true;
  }

  // Row blocks of the task; of EXPERT_DOWN those of the active experts in turn, then that of the shared experts.
  __device__ __forceinline__ bool weights(const Task& t) {
#if MK_ROWS > 8
    u32 passes = passes_of(b, t, walk);
#else
    constexpr u32 passes = 1;
#endif
    for (u32 i = 0; i < t.blocks * passes; ++i)
      if (!weights(t, i / passes, i % passes)) return false;
    return true;
  }

  __device__ __forceinline__ bool weights(const Task& t, u32 block, u32 pass) {
    const Routing& routing = walk.routing();
    u32 parts = t.op == EXPERT_DOWN ? routing.count : 1;
    for (u32 part = 0; part < parts + (t.tail != 0); ++part) {
#if MK_ROWS > 8
      if (PASSES && t.op == EXPERT_DOWN && part < parts) {
        Listed mine = listed_in_pass(routing, part, pass);
        if (mine.first == mine.end) continue;
      }
#endif
      u32 k16 = part < parts ? t.k16 : t.tail, expert = t.op == EXPERT_UP ? t.slot : part;
      const char* from = (const char*)(part < parts ? t.weight : t.weight2) + (u64)block * k16 * FRAGMENT;
      if (is_routed(t.op) && part < parts) from += routing.expert[expert] * t.stride;
#pragma unroll 1
      for (u32 k = 0; k < k16; k += CHUNK_K16)
        if (!chunk(from + k * FRAGMENT, min(CHUNK_K16, k16 - k) * FRAGMENT, t)) return false;
    }
    return true;
  }

  // Pages of a split: keys first, then values.  A page that this step writes is read only after the counter that says so (with one
  // row, attention has its key and value from tagged words).
  __device__ __forceinline__ bool pages(const Task& t, u32 row) {
    KeyRange r = walk.keys(t, row_of(t, row));
    const Layer& layer = b.layers[t.layer];
    u32 id = b.lane < r.pages ? page_id(b, row_of(t, row), r.first_page + b.lane) : 0;
    u32 fresh = (b.s.first[row_of(t, row)] + walk.step) / PAGE;  // the first page that this step may write
    bool waited = false;
#pragma unroll 1
    for (u32 i = 0; i < 2 * r.pages; ++i) {
      if (!ONE && !waited && i < r.pages && r.first_page + i >= fresh) {  // among the keys, which come first
        if (!walk.wait.counter(layer.qkv_counter + t.c * layer.qkv_step, walk.target(layer.qkv_arrivals, layer.qkv_arrivals), t.id,
                               walk.step))
          return false;
        ptx::fence_copy_engine();
        waited = true;
      }
      u32 value = i >= r.pages, page = __shfl_sync(~0u, id, value ? i - r.pages : i);
      if (!chunk(page_address(b.p, page, t.layer, t.c, value), PAGE * b.p.head_dim * 2, t)) return false;
    }
    return true;
  }

  __device__ __forceinline__ bool pages_of_rows(const Task& t) {
    for (u32 row = t.a, left = walk.rows_of(t); left; --left, ++row)
      if (!pages(t, row)) return false;
    return true;
  }

#if MK_ROWS <= 8
  // The rows' experts: with one row from the router's logits, by this SM for itself; else from what TOP_K tasks have written.
  __device__ __forceinline__ bool route(const Task& t) {
    Routing& r = b.s.routing[walk.ordinal & 1];
    const Model& p = b.p;
    u32 lane = b.lane, used[MAX_EXPERTS / 32] = {}, count = 0;
    auto put = [&](u32 row, u32 k, u32 expert, float weight) { r.chosen[row][k] = expert, r.weight[row][k] = weight; };
#if MK_ROWS == 1
    float logits[MAX_EXPERTS / 32];
    uint2 words[MAX_EXPERTS / 32];
    u32 polls = 0;
    auto mine = [&](u32 q) { return q * 32 + lane < p.experts; };
    auto at = [&](u32 q) { return (const u64*)p.router_logits + q * 32 + lane; };
    if (!read_tagged(walk, t, t.waits - 1, walk.tag(t.layer), words, polls, mine, at)) return false;
#pragma unroll
    for (u32 q = 0; q < MAX_EXPERTS / 32; ++q) logits[q] = mine(q) ? __uint_as_float(words[q].x) : NEG_INF;
    route_row(p, logits, lane, used, [&](u32 k, u32 expert, float weight) { put(0, k, expert, weight); });
#else
    constexpr u32 N = MAX_ROWS * MAX_TOP_K / 32;
    u32 expert[N];
    float weight[N];
    auto mine = [&](u32 i) { return (i * 32 + lane) / MAX_TOP_K < p.rows && lane % MAX_TOP_K < p.top_k; };
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      u32 at = i * 32 + lane;
      expert[i] = mine(i) ? __ldcg((const u32*)p.chosen + at) : ~0u, weight[i] = mine(i) ? __ldcg((const float*)p.chosen_weight + at) : 0;
    }
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      if (mine(i)) put((i * 32 + lane) / MAX_TOP_K, lane % MAX_TOP_K, expert[i], weight[i]);
#pragma unroll
      for (u32 q = 0; q < MAX_EXPERTS / 32; ++q) used[q] |= __reduce_or_sync(~0u, expert[i] >> 5 == q ? 1u << (expert[i] & 31) : 0);
    }
#endif
#pragma unroll
    for (u32 q = 0; q < MAX_EXPERTS / 32; ++q) {
      if (used[q] >> lane & 1) r.expert[count + __popc(used[q] & ((1u << lane) - 1))] = q * 32 + lane;
      count += __popc(used[q]);
    }
    if (lane == 0) r.count = count;
    __syncwarp();
    return true;
  }
#else
  // `take(row, k, expert)` for the k-th expert of each of the lane's rows, as TOP_K tasks have left them.
  template <typename Take>
  __device__ __forceinline__ void each_choice(Take take) const {
    constexpr u32 AT_ONCE = 4, PIECES = MAX_TOP_K / 4;  // reads under way; of four experts each
    const Model& p = b.p;
#pragma unroll 1
    for (u32 first = b.lane; first < p.rows * PIECES; first += 32 * AT_ONCE) {
      uint4 v[AT_ONCE];
      auto there = [&](u32 i) { return i < p.rows * PIECES && i % PIECES * 4 < p.top_k; };
#pragma unroll
      for (u32 j = 0; j < AT_ONCE; ++j)
        if (there(first + j * 32)) v[j] = __ldcg((const uint4*)p.chosen + first + j * 32);
#pragma unroll
      for (u32 j = 0; j < AT_ONCE; ++j) {
        u32 i = first + j * 32, row = i / PIECES, k = i % PIECES * 4;
        if (!there(i)) continue;
        take(row, k, v[j].x);
        if (k + 1 < p.top_k) take(row, k + 1, v[j].y);
        if (k + 2 < p.top_k) take(row, k + 2, v[j].z);
        if (k + 3 < p.top_k) take(row, k + 3, v[j].w);
      }
    }
  }

  // Of each active expert the rows that chose it.
  __device__ __forceinline__ void list_rows() {
    Routing& r = b.s.routing[walk.ordinal & 1];
    constexpr u32 WORDS = (MAX_ROWS + 31) / 32;
    u32 lane = b.lane, count = 0, listed = 0;
    for (u32 i = lane; i < MAX_EXPERTS * WORDS; i += 32) b.s.by_expert[i / WORDS][i % WORDS] = 0;
    __syncwarp();
    each_choice([&](u32 row, u32, u32 expert) { atomicOr(&b.s.by_expert[expert][row >> 5], 1u << (row & 31)); });
    __syncwarp();
#pragma unroll 1
    for (u32 first = 0; first < MAX_EXPERTS; first += 32) {
      u32 expert = first + lane, rows = 0, of_pass = 0;
#pragma unroll
      for (u32 w = 0; w < WORDS; ++w) {
        rows += __popc(b.s.by_expert[expert][w]);
        if (w == PASS_ROWS / 32 - 1) of_pass = rows;
      }
      u32 upto = rows;
      for (u32 o = 1; o < 32; o <<= 1) {
        u32 before = __shfl_up_sync(~0u, upto, o);
        if (lane >= o) upto += before;
      }
      u32 mask = __ballot_sync(~0u, rows != 0), slot = count + __popc(mask & ((1u << lane) - 1));
      if (rows) r.expert[slot] = expert, r.start[slot] = listed + upto - rows, b.s.slot_of[expert] = slot;
      if (PASSES && rows) r.second[slot] = listed + upto - rows + of_pass;
      count += __popc(mask), listed += __shfl_sync(~0u, upto, 31);
    }
    if (lane == 0) r.start[count] = listed;
    __syncwarp();
    each_choice([&](u32 row, u32 k, u32 expert) {
      const u32* rows = b.s.by_expert[expert];
      u32 at = r.start[b.s.slot_of[expert]] + __popc(rows[row >> 5] & ((1u << (row & 31)) - 1));
      for (u32 w = 0; w < row >> 5; ++w) at += __popc(rows[w]);
      r.rows[at] = row, r.rank[at] = k;
    });
    __syncwarp();
    if (lane == 0) r.count = count;
    __syncwarp();
  }
#endif

  // For the trace: which expert each slot of the layer has, and how many rows chose it.
  __device__ __forceinline__ void note_routes(u32 layer) {
    const Routing& r = walk.routing();
    for (u32 i = b.lane; i < ROUTE_SLOTS; i += 32) {
      u32 rows = 0;
#if MK_ROWS > 8
      rows = i < r.count ? r.start[i + 1] - r.start[i] : 0;
#else
      for (u32 row = 0; i < r.count && row < b.p.rows; ++row)
        for (u32 k = 0; k < b.p.top_k; ++k) rows += r.chosen[row][k] == r.expert[i];
#endif
      ((u32*)b.p.routes)[layer * ROUTE_SLOTS + i] = i < r.count ? rows << 16 | (r.expert[i] + 1u) : 0;
    }
  }

  __device__ __forceinline__ bool routing(const Task& t) {
    const Layer& layer = b.layers[t.layer];
    if (!walk.wait.barrier(b.s.routing_free[walk.ordinal & 1], ((walk.ordinal >> 1) & 1) ^ 1, t.id, walk.step)) return false;
    if (!ONE && !walk.wait.counter(layer.router_counter, walk.target(layer.router_arrivals, layer.router_arrivals), t.id, walk.step))
      return false;
#if MK_ROWS > 8
    list_rows();
#else
    if (!route(t)) return false;
#endif
    __syncwarp();
    if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.routed[walk.ordinal & 1]));
    return true;
  }

#if MK_ABLATE == 3
  // As if tasks were claimed: nothing of a task can be loaded before its ticket is back.  The kernel goes on along its list.
  __device__ __forceinline__ bool ablated(const Task& t) {
    u32 ticket = 0;
    if (b.lane == 0) ticket = atomicAdd((u32*)b.p.counters + b.p.picked_counter * 32 + 1, 2u);  // beside the counter, in its line
    return __shfl_sync(~0u, ticket, 0) != NO_COUNTER;  // which is odd
  }
#elif MK_ABLATE
  // Until math is through with all chunks so far; and, of 2, until the task's counters are there.
  __device__ __forceinline__ bool ablated(const Task& t) {
    for (u32 c = issued > b.p.stages ? issued - b.p.stages : 0; c < issued; ++c)
      if (!walk.wait.barrier(b.s.empty[c % b.p.stages], (c / b.p.stages) & 1, t.id, walk.step)) return false;
    for (u32 i = 0; MK_ABLATE == 2 && i < t.waits; ++i)
      if (!walk.wait.counter(t.wait[i], walk.target(t.wait_arrivals[i], t.need[i]), t.id, walk.step)) return false;
    return true;
  }
#endif

  __device__ __forceinline__ bool task(const Task& t) {
    if (is_vector(t.op)) return true;
    if (walk.enter_routed(t.routed) && !routing(t)) return false;
    if (!walk.has_work(t)) return true;
    jitter(b.p, b.sm * 8, t.id);
#if MK_TRACE
    if (b.lane == 0) ((RoleState*)b.p.states)[b.sm * ROLE_LINES + ROLE_LOADER] = {t.id, mkviz::RUNNING, NO_COUNTER, 0};
#endif
    ++walk.work;
#if MK_ABLATE
    if (!ablated(t)) return false;
#endif
    if (!(t.op != ATTENTION ? weights(t) : WIDE ? pages_of_rows(t) : pages(t, t.a))) return false;
#if MK_TRACE
    if (b.lane == 0) claim(b, walk.work - 1);  // not before its chunks are on their way: reading the timer takes as long as one of them
    __syncwarp();
    if (t.op == EXPERT_DOWN && t.tile == 0) note_routes(t.layer);  // once a layer, and not before all experts are under way
#endif
    return true;
  }

  __device__ __forceinline__ void steps() {
    walk.begin();
    for (; walk.step < b.p.steps; ++walk.step) {
      if (!walk.next_step()) return;
      if (walk.step) ptx::fence_copy_engine();  // for pages that the steps before wrote
      for (u32 i = 0; i < b.count(); ++i)
        if (!task(walk.task(i))) return;
    }
  }

  // A launch that is given up leaves chunks that nobody takes, and no launch may end while copies are still on their way into its
  // shared memory.
  __device__ __forceinline__ void drain() {
    for (u32 c = issued > b.p.stages ? issued - b.p.stages : 0; c < issued; ++c)
      while (!ptx::phase_over(ptx::shared_address(&b.s.full[c % b.p.stages]), (c / b.p.stages) & 1)) {}
  }

  __device__ __forceinline__ void run() {
    steps();
    drain();
  }
};
