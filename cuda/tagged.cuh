// Tagged words: four bytes of data and four of tag in one access of eight, so that a reader sees by themselves whether they are there
// (NCCL calls the protocol LL).  In the kernel for one row everything that SMs hand to each other within a step travels so: whoever
// needs it polls the data, and neither does the producer wait for its stores before it raises a counter, nor the consumer for a
// counter before it reads.  A layer of a step has a tag that no other has, so nothing needs to be cleared; with eight rows the
// polls would take as much of the L2 cache's bandwidth as weights do.
#pragma once
#include "walker.cuh"

__device__ __forceinline__ bool tagged(uint2 v, u32 tag) { return v.y == tag; }
__device__ __forceinline__ bool tagged(uint4 v, u32 tag) { return v.y == tag && v.w == tag; }
__device__ __forceinline__ void load_tagged(uint2& v, const u64* at) { v = ptx::load_tagged(at); }
__device__ __forceinline__ void load_tagged(uint4& v, const u64* at) { v = ptx::load_tagged2(at); }

// Poll once more?  Counter `wait` of the task stands for the data where a stuck launch is reported.
__device__ __noinline__ bool poll_again(u32 polls, const Model& p, const Task& t, u32 wait, u32 role, u32 step) {
  const Shared& s = shared_block();
  if (p.hidden >= 1024) __nanosleep(200);  // polls take bandwidth from those who are still at work; a small model has it to spare
  if ((polls & 63) == 0 && aborted(s.abort)) return false;
  if (polls <= s.poll_budget) return true;
  u32 c = t.wait[wait], target = (p.epoch + step) * t.wait_arrivals[wait] + t.need[wait];
  return give_up(role, t.id, c, ptx::load_acquire((const u32*)p.counters + c * 32), target, step);
}

// By a whole warp: N accesses a lane, of one word (uint2) or of two (uint4), all under way together.
// mine(i): whether the lane has an i-th one; at(i): where.
template <typename V, u32 N, typename Mine, typename At>
__device__ __forceinline__ void ask_tagged(V (&v)[N], Mine mine, At at) {
#pragma unroll
  for (u32 i = 0; i < N; ++i) {
    v[i] = V();
    if (mine(i)) load_tagged(v[i], at(i));
  }
}

// Of what has been asked for: until all has the tag.  `polls` counts.  False: the launch is given up.
template <typename V, u32 N, typename Mine, typename At>
__device__ __forceinline__ bool have_tagged(const Walker& walk, const Task& t, u32 wait, u32 tag, V (&v)[N], u32& polls, Mine mine, At at) {
  for (;; ask_tagged(v, mine, at)) {
    bool there = true;
#pragma unroll
    for (u32 i = 0; i < N; ++i) there = there && (!mine(i) || tagged(v[i], tag));
    if (__ballot_sync(~0u, there) == ~0u) return true;
    if (N <= 6) {
      if (!poll_again(++polls, walk.b.p, t, wait, walk.wait.role, walk.step)) return false;
      continue;
    }
    // Many: one that was not there is polled until it is, and then all are read anew.  Polls of all take bandwidth from the weights.
    const u64* missing = nullptr;
#pragma unroll
    for (u32 i = 0; i < N; ++i)
      if (mine(i) && !tagged(v[i], tag)) missing = at(i);
    for (bool here = false; __ballot_sync(~0u, here) != ~0u;) {
      if (!poll_again(++polls, walk.b.p, t, wait, walk.wait.role, walk.step)) return false;
      V word = V();
      if (missing) load_tagged(word, missing);
      here = !missing || tagged(word, tag);
    }
  }
}

// Both.
template <typename V, u32 N, typename Mine, typename At>
__device__ __forceinline__ bool read_tagged(const Walker& walk, const Task& t, u32 wait, u32 tag, V (&v)[N], u32& polls, Mine mine, At at) {
  ask_tagged(v, mine, at);
  return have_tagged(walk, t, wait, tag, v, polls, mine, at);
}

// The word of a vector of bf16 that has elements k and k + 1 (k even): in the order of B fragments, eight words each.
__device__ __forceinline__ u32 tagged_word(u32 k) { return (k >> 4) * 8 + ((k & 7) >> 1) * 2 + ((k >> 3) & 1); }

// bf16 of two rows of a tile's column 0, r and r + 1 with r even: there together in the lanes that have r.
__device__ __forceinline__ u32 with_next_row(u16 mine) { return mine | __shfl_xor_sync(~0u, (u32)mine, 4) << 16; }
