// Walking: every role goes through the SM's whole list and decides alike which tasks have work
#pragma once
#include "block.cuh"

struct Walker {
  Block& b;
  Waiter wait;
  u32 step = 0;          // of this launch
  u32 work = 0;          // tasks with work so far
  u32 ordinal = ~0u;     // routed layers entered so far, minus one
  u32 entered = 0;       // those of this step
  u32 meetings = 0;      // times that the role's warps have met
  u32 ahead, turn = 0;   // this lane's word of the next task; where this one is kept
#if MK_COPIES_TASKS
  u32 upcoming = 0;      // the task whose words are to be asked for
#else
  u32 beyond;            // its word of the one behind that
#endif

  __device__ __forceinline__ Walker(Block& block, Role role) : b(block), wait{block.p, role} {}

  __device__ __forceinline__ u32 target(u32 arrivals, u32 need) const { return (b.p.epoch + step) * arrivals + need; }

  // Of what is handed over in a layer (the last one's successor has the final norm's input).
  __device__ __forceinline__ u32 tag(u32 layer) const { return b.p.tag + step * (b.p.layer_count + 1) + layer; }

  // Before a step: the tokens of the one before must be there, and the host must not have asked to stop.
  __device__ __forceinline__ bool next_step() {
    entered = 0;
    if (step == 0) return true;
    if (!wait.counter(b.p.picked_counter, (b.p.epoch + step) * b.p.picked_arrivals, mkviz::NO_TASK, step)) return false;
    return __ldcg((const u32*)b.p.go + step) != 0;
  }

  // All warps of the role are here, and see what the others wrote before.
  __device__ __forceinline__ bool meet(u64& team) {
    __syncwarp();
    if (b.lane == 0) ptx::arrive(ptx::shared_address(&team));
    return wait.barrier(team, meetings++ & 1, mkviz::NO_TASK, step);
  }

  // The SM's task i, as a copy of the warp's own in shared memory.  Every acquire empties the L1 cache, so that fields read
  // from global memory would be fetched anew after each wait; and the words of the next two tasks (where WIDE: of the next one) are
  // under way while this one is done.
#if MK_COPIES_TASKS
  // By copies that hold no register: a word that is on its way to one stops the warp where it is moved on, be it for the task after next.
  // With one row that was slower (measured: docs/decisions/0014).
  __device__ __forceinline__ Task& walked(u32 slot) { return slot < 2 ? b.s.task[b.warp][slot] : b.s.third[b.warp]; }

  __device__ __forceinline__ void begin() {
#pragma unroll 1
    for (u32 slot = 0; slot + 1 < WALKED; ++slot) ask(slot);
  }

  __device__ __forceinline__ void ask(u32 slot) {
    if (b.count()) ptx::fetch_word(ptx::shared_address(&walked(slot)) + b.lane * 4, (const u32*)(b.tasks() + upcoming) + b.lane);
    if (++upcoming >= b.count()) upcoming = 0;  // of the next step
  }

  __device__ __forceinline__ const Task& task(u32) {
    u32 slot = turn;
    __syncwarp();  // nobody reads the task before any more
    ask(slot ? slot - 1 : WALKED - 1);
    ptx::await_words<WALKED - 1>();
    __syncwarp();
    turn = slot + 1 == WALKED ? 0 : slot + 1;
    return walked(slot);
  }
#else
  __device__ __forceinline__ void begin() {}

  __device__ __forceinline__ const Task& task(u32 i) {
    if (WIDE) return copy(i, i == 0, [&](const Task&) { return i + 1; });
    auto words = [&](u32 task) { return task < b.count() ? __ldg((const u32*)(b.tasks() + task) + b.lane) : 0; };
    u32 now = ahead;
    if (i == 0) now = words(0), beyond = words(1);
    ahead = beyond, beyond = words(i + 2);
    Task& to = b.s.task[b.warp][turn ^= 1];
    ((u32*)&to)[b.lane] = now;
    __syncwarp();
    return to;
  }
#endif

  // The same for a storer, whose next one the task names.
  __device__ __forceinline__ const Task& chained(u32 i, bool first) {
    return copy(i, first, [](const Task& t) { return t.next; });
  }

  template <typename NextOf>
  __device__ __forceinline__ const Task& copy(u32 i, bool first, NextOf next_of) {
    auto words = [&](u32 task) { return __ldg((const u32*)(b.tasks() + task) + b.lane); };
    Task& to = b.s.task[b.warp][turn ^= 1];
    ((u32*)&to)[b.lane] = first ? words(i) : ahead;
    __syncwarp();
    u32 next = next_of(to);
    if (next < b.count()) ahead = words(next);
    return to;
  }

  __device__ __forceinline__ u32 position(u32 row) const { return b.s.position[row] + step; }

  // Whether there is a routed layer to enter, of the `routed` that the list has entered by then.  Each warp that reads the routing
  // hands the one before back, and must then await the new one, even of a layer where it has no task: so nobody is ever more than
  // one routed layer away from the loader, and parities are unambiguous.
  __device__ __forceinline__ bool enter_routed(u32 routed) {
    if (entered == routed) return false;
    ++entered, ++ordinal;
    if (ordinal && wait.role != ROLE_LOADER) {
      __syncwarp();
      if (b.lane == 0) ptx::arrive(ptx::shared_address(&b.s.routing_free[(ordinal - 1) & 1]));
    }
    return true;
  }

  __device__ __forceinline__ bool await_routing(u32 task) { return wait.barrier(b.s.routed[ordinal & 1], (ordinal >> 1) & 1, task, step); }

  __device__ __forceinline__ const Routing& routing() const { return b.s.routing[ordinal & 1]; }

  __device__ __forceinline__ bool has_work(const Task& t) const {
    if (t.op == ATTENTION) {
      if (!WIDE) return t.a < b.p.rows && keys(t, t.a).pages;
      for (u32 row = t.a, left = rows_of(t); left; --left, ++row)
        if (keys(t, row).pages) return true;
      return false;
    }
    if (t.op == EXPERT_UP) return t.slot < routing().count;
    return true;
  }

  __device__ __forceinline__ KeyRange keys(const Task& t, u32 row) const {
    return key_range(position(row), b.layers[t.layer].window, t.d);
  }

  // Rows of an attention task, from t.a on.
  __device__ __forceinline__ u32 rows_of(const Task& t) const { return WIDE ? max(min(t.b, b.p.rows), t.a) - t.a : 1; }
};
