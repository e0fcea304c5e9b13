// What the roles of a block share: its shared memory, its barriers, and how any of them waits.
#pragma once
#include "mkviz.cuh"

#ifndef MK_TRACE
#define MK_TRACE 0  // 0: no timer is read; 1: a record a task; 2: a second record of the phases inside it
#endif
#ifndef MK_ROWS
// Most rows of a step: 1, whose activations travel as tagged words (tagged.cuh); 8, where top-k is a task; or 16, 32, … 256, where
// norms are tasks too and activations stay in global memory.
#define MK_ROWS 8
#endif
#ifndef MK_QK_NORM
#define MK_QK_NORM 0  // 1: heads of Q and K are normed before RoPE; the tile of a QKV task is a whole head
#endif
#ifndef MK_SAMPLING
#define MK_SAMPLING 0  // 1: rows may be drawn, by SAMPLE and PICK
#endif
#ifndef MK_DELAYS
#define MK_DELAYS 0  // 1: random delays at every role edge, for tests
#endif
#ifndef MK_ABLATE
#define MK_ABLATE 0  // ablations of the loader: 1: the ring is empty before a task; 2: and the task is ready; 3: a ticket for each task
#endif

#include "model.cuh"

static constexpr u32 ROWS = 8;  // columns of the tensor-core tile
static constexpr u32 MAX_ROWS = MK_ROWS, GROUPS = (MAX_ROWS + ROWS - 1) / ROWS;
static constexpr bool ONE = MAX_ROWS == 1, WIDE = GROUPS > 1;
static constexpr u32 TASK_ROWS = GROUPS < 8 ? GROUPS : 8;  // rows of an attention task: an eighth of the bucket, at most eight
// A product's sums have room in shared memory for so many groups of eight columns; more of them are another pass over its weights.
static constexpr u32 PASS_GROUPS = GROUPS < 16 ? GROUPS : 16, PASS_ROWS = PASS_GROUPS * ROWS;
static constexpr bool PASSES = GROUPS > PASS_GROUPS;
static constexpr u32 ROUTE_SLOTS = WIDE ? 256 : 128;  // of a layer in the routes table
static constexpr u32 MATH_WARPS = 8, FEEDERS = 3, STORERS = 4;  // 16 warps: 128 registers a thread
static constexpr u32 LOADER = MATH_WARPS, FEEDER0 = LOADER + 1, STORER0 = FEEDER0 + FEEDERS;
static constexpr u32 WARPS = STORER0 + STORERS, THREADS = WARPS * 32;
static constexpr u32 SLOTS = 8;       // tasks between feeder and math
static constexpr u32 TILE_BUFFERS = 2;  // finished tiles waiting, per storer
#if MK_ROWS == 8 && !(defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200)  // there it would spill
#define MK_COPIES_TASKS 1
#else
#define MK_COPIES_TASKS 0
#endif
static constexpr u32 WALKED = 3;  // with eight rows: of its SM's list the task that a warp is at, and two that are on their way
#ifndef MK_EXPERTS
#define MK_EXPERTS 256  // of the model, or more
#endif
static constexpr u32 MAX_STAGES = 16, MAX_EXPERTS = (MK_EXPERTS + 31) / 32 * 32;
static constexpr u32 MAX_ACTIVE = MAX_ROWS * MAX_TOP_K < MAX_EXPERTS ? MAX_ROWS * MAX_TOP_K : MAX_EXPERTS;
// At level 1 one in so many of an SM's tasks reads the ring's fill.
static constexpr u32 FILL_EVERY = MK_TRACE > 1 ? 1 : 16;
static constexpr u32 STAMPS = 32;     // tasks whose stamps are kept: more than can be in flight between loader and storer

enum Role : u32 { ROLE_LOADER, ROLE_FEEDER, ROLE_MATH, ROLE_STORER };
static constexpr u32 ROLE_LINES = 3 + STORERS;  // RoleState lines of a block: loader, feeder, math, each storer

#define NEG_INF __int_as_float(0xff800000)  // NVRTC has no INFINITY

// A finished 16 x 8 tile as the math warps leave it: one partial sum of every warp, in accumulator order; for attention the
// tile of warp w is rows 16 w .. 16 w + 15 of the output, and the sums and maxima of the softmax go along.
struct __align__(16) Tile {  // its sums are read in pairs
#if MK_ROWS == 1
  float part[MATH_WARPS][16];  // of column 0; attention leaves none
#else
  float4 part[MATH_WARPS][32];
#endif
  float sum[MATH_WARPS][ROWS];
  float top[ROWS];
  u32 work;  // number of the task among the SM's tasks with work: where its stamps are
};

struct Stamp { u32 owner, ns, claim, ready, begin, end, last_chunk, last_wait, landed, late; };

struct Routing {
  u32 count;                           // active experts
  u16 expert[MAX_ACTIVE];              // ascending
#if MK_ROWS > 8
  u16 start[MAX_ACTIVE + 1];           // of each active expert's rows among
  u8 rows[MAX_ROWS * MAX_TOP_K];       // these, ascending;
  u8 rank[MAX_ROWS * MAX_TOP_K];       // which of its row's experts it is
  u16 second[PASSES ? MAX_ACTIVE : 1]; // of each active expert's rows the first from PASS_ROWS on
#else
  u16 chosen[MAX_ROWS][MAX_TOP_K];     // ascending
  float weight[MAX_ROWS][MAX_TOP_K];
#endif
};

struct Shared {  // the fixed part; ring stages, resident activations and q buffers lie behind it
  Tile tile[STORERS - 1][TILE_BUFFERS];  // the last storer has tasks without
  float wide[MATH_WARPS][ROWS];        // maxima of the softmax, one row a math warp
  uint2 probs[SPLIT / 16][32];         // P of a split as B fragments
  Routing routing[2];                  // of the SM's routed layers, in turn
  Stamp stamp[STAMPS];
  Stamp alone[STORERS];                // of the storers' own tasks
  mkviz::Ring ring[STORERS];           // here, because the storers have no registers to spare
  u64 full[MAX_STAGES], empty[MAX_STAGES];
  u64 ready[SLOTS], done[SLOTS];       // feeder -> math -> feeder
  u64 tile_full[STORERS][TILE_BUFFERS], tile_empty[STORERS][TILE_BUFFERS];
  u64 routed[2], routing_free[2];      // loader -> everybody -> loader
  Task task[WARPS][2];                 // what each warp is at, and the one before
#if MK_COPIES_TASKS
  Task third[STORER0];                 // and of who walks the list one more
#endif
  u32 position[MAX_ROWS], first[MAX_ROWS], sequence[MAX_ROWS], wants[MAX_ROWS];  // of the rows, at the launch's first step
#if MK_ROWS > 8
  u32 by_expert[MAX_EXPERTS][(MAX_ROWS + 31) / 32];  // the loader's, while it lists rows: bit r: row r
  u16 slot_of[MAX_EXPERTS];            // the same
  float4 sums[MATH_WARPS][PASS_GROUPS][32];  // of the block that math is at, as in a tile, for each eight columns
#endif
#if MK_ROWS == 8
  u32 fresh[SLOTS];                    // whether math has to norm the rows that the task reads
#endif
#if MK_ROWS == 1
  u32 turns[2];                        // of each team of math warps: blocks that each of its warps has finished
  float norm[2][FEEDERS];              // per pass: each feeder's part of the sum
  u32 fresh[2][2][64];                 // beside each q buffer: key and value of the step's own token, bf16 pairs
#endif
  u32 poll_budget;
  Abort* abort;
#if MK_ROWS > 8
  const Task* tasks;
  u32 count;
#endif
  u64 math_team, feeder_team;          // barriers inside a role: not bar.sync, which a warp that has left would hang
};

struct Block {
  const Model& p;
  Shared& s;
  char* ring;    // stages x CHUNK
  u32* x;        // resident activations: bf16 pairs, [rows][x_stride]; none where WIDE
  u32* q;        // [2][TASK_ROWS][ROWS][q_stride]
  const Layer* layers;
  u32 q_stride, sm, lane, warp;
#if MK_ROWS > 8  // math has no registers to spare
  __device__ __forceinline__ const Task* tasks() const { return s.tasks; }
  __device__ __forceinline__ u32 count() const { return s.count; }
#else
  const Task* list;
  u32 length;
  __device__ __forceinline__ const Task* tasks() const { return list; }
  __device__ __forceinline__ u32 count() const { return length; }
#endif
};

// -- waiting: every wait has a budget of polls, and sees the abort word

extern __shared__ __align__(128) char block_memory[];
__device__ __forceinline__ Shared& shared_block() { return *(Shared*)block_memory; }

__device__ __forceinline__ bool aborted(const Abort* a) { return *(const volatile u32*)&a->word != 0; }

// Give the launch up, once: who waits for what.  Everybody else sees the word and leaves.
__device__ __noinline__ bool give_up(u32 role, u32 task, u32 counter, u32 value, u32 target, u32 step) {
  Abort* a = shared_block().abort;
  if (atomicCAS(&a->word, 0u, 1u) == 0) {
    a->sm = blockIdx.x, a->role = role, a->task = task, a->counter = counter, a->value = value, a->target = target, a->step = step;
    __threadfence_system();
  }
  return false;
}

// The waits are functions of their own: inlined at every place that waits, they made the kernel larger than the instruction cache.

__device__ __noinline__ bool wait_counter(const u32* at, u32 target, u32 counter, u32 role, u32 task, u32 step) {
  const Shared& s = shared_block();
  for (u32 polls = 1;; ++polls) {
    u32 v = ptx::load_acquire(at);
    if ((int)(v - target) >= 0) return true;
    if ((polls & 255) == 0 && aborted(s.abort)) return false;
    if (polls > s.poll_budget) return give_up(role, task, counter, v, target, step);
  }
}

// Other roles of the block feed a barrier, so it may take longer than any counter.
__device__ __noinline__ bool wait_barrier(u32 at, u32 parity, u32 role, u32 task, u32 step) {
  const Shared& s = shared_block();
  for (u32 polls = 1; !ptx::phase_over(at, parity); ++polls) {
    if ((polls & 63) == 0 && aborted(s.abort)) return false;
    if (polls > 4 * (u64)s.poll_budget) return give_up(role, task, NO_COUNTER, 0, 0, step);
  }
  return true;
}

struct Waiter {
  const Model& p;
  u32 role;

  // Until the counter has reached the target (signed difference, so a wrap does not matter).  False: the launch is given up.
  __device__ __forceinline__ bool counter(u32 c, u32 target, u32 task, u32 step) const {
    return wait_counter((const u32*)p.counters + c * 32, target, c, role, task, step);
  }

  // Whether it has.
  __device__ __forceinline__ bool seen(u32 c, u32 target) const {
    return (int)(ptx::load_acquire((const u32*)p.counters + c * 32) - target) >= 0;
  }

  // Until the phase of a barrier is over.
  __device__ __forceinline__ bool barrier(u64& bar, u32 parity, u32 task, u32 step) const {
    u32 at = ptx::shared_address(&bar);
    return ptx::phase_over(at, parity) || wait_barrier(at, parity, role, task, step);
  }
};

// Whether storers do it alone.
__device__ __forceinline__ bool is_vector(u32 op) {
  return op == EMBED || op == MERGE || op == PICK || (MK_SAMPLING && op == SAMPLE) || (WIDE && op == NORM) || (!ONE && op == TOP_K);
}
// Whether it reads the normed residual.
__device__ __forceinline__ bool reads_x(u32 op) {
  return op == QKV || op == ROUTER || op == EXPERT_UP || op == SHARED_UP || op == DENSE_UP || op == LM_HEAD;
}
__device__ __forceinline__ bool is_routed(u32 op) { return op == EXPERT_UP || op == EXPERT_DOWN; }

struct KeyRange { u32 lo, hi, first_page, pages; };  // keys [lo, hi) of a split; pages: 0 when the row has nothing there

__device__ __forceinline__ u32 oldest_key(u32 position, u32 window) { return window && position + 1 > window ? position + 1 - window : 0; }

__device__ __forceinline__ KeyRange key_range(u32 position, u32 window, u32 split) {
  u32 oldest = oldest_key(position, window), block = oldest / SPLIT + split;
  u32 lo = max(oldest, block * SPLIT), hi = min(position + 1, (block + 1) * SPLIT);
  if (lo >= hi) return {0, 0, 0, 0};
  return {lo, hi, lo / PAGE, (hi - 1) / PAGE - lo / PAGE + 1};
}

// The row that an attention task is at: without others it is the task's own, read where it is needed.
__device__ __forceinline__ u32 row_of(const Task& t, u32 row) { return WIDE ? row : t.a; }

// -- stamps: a task's times travel from role to role in shared memory

__device__ __forceinline__ Stamp& stamp_of(Block& b, u32 work) { return b.s.stamp[work & (STAMPS - 1)]; }

// The first role to take a task up stamps its claim: mostly the loader, but the feeders where the ring is full.  The time is read
// before the contest, so that no later stamp of the loser precedes it.
__device__ __forceinline__ void claim(Block& b, u32 work) {
  Stamp& s = stamp_of(b, work);
  if (*(volatile u32*)&s.owner == work + 1) return;
  u32 ns = (u32)ptx::global_ns(), now = ptx::cycles();
  if (atomicExch(&s.owner, work + 1) != work + 1) s.ns = ns, s.claim = now;
}

// A position in the ring of stages, without divisions.
struct Place {
  u32 stage = 0, phase = 0;
  __device__ __forceinline__ void next(u32 stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
  __device__ __forceinline__ void skip(u32 chunks, u32 stages) {
    for (stage += chunks; stage >= stages; stage -= stages) phase ^= 1;
  }
};

// -- test hook: up to about 2 us of delay, drawn from the seed, the place and the time of the call

__device__ __forceinline__ void jitter(const Model& p, u32 a, u32 b) {
#if MK_DELAYS
  u32 h = (p.delay_seed ^ a * 2654435761u ^ b * 40503u) * 2246822519u;
  h ^= h >> 15, h *= 3266489917u, h ^= h >> 13;
  if (p.delay_seed && (h & 3) == 0) __nanosleep(h >> 21);
#endif
}

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
  __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *(u32*)&v;
}

__device__ __forceinline__ u16 to_bf16(float v) {
  __nv_bfloat16 b = __float2bfloat16_rn(v);
  return *(u16*)&b;
}

__device__ __forceinline__ float from_bf16(u16 v) { return __uint_as_float((u32)v << 16); }

// Where element (k, row) of a vector kept as B fragments lies, in u16: [k16][lane][2] pairs.
__device__ __forceinline__ constexpr u32 fragment_index(u32 k, u32 row) {
  u32 in = k & 15;
  return ((k >> 4) * 32 + row * 4 + ((in & 7) >> 1)) * 4 + (in >> 3) * 2 + (in & 1);
}

// Where element (row, k) of a matrix kept as A fragments of `k16` fragments a row block lies, in u16.
__device__ __forceinline__ constexpr u32 packed_index(u32 row, u32 k, u32 k16) {
  u32 r = row & 15, in = k & 15;
  return (((row >> 4) * k16 + (k >> 4)) * 32 + (r & 7) * 4 + ((in & 7) >> 1)) * 8 + ((in >> 3) * 2 + (r >> 3)) * 2 + (in & 1);
}

// The same of B fragments that hold eight rows behind each other, `k16` fragments each.
__device__ __forceinline__ u32 fragment_index(u32 k, u32 row, u32 k16) {
  return WIDE ? (row >> 3) * k16 * (ROWS * 16) + fragment_index(k, row & 7) : fragment_index(k, row);
}
