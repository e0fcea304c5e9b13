// One persistent kernel: one block per SM, each walks its list of tasks.  What it is compiled
// for, engine/cuda/defines.py says: a bucket of rows, a trace level, and for few rows one model.
#include "feeder.cuh"
#include "loader.cuh"
#include "math.cuh"
#include "storer.cuh"

__device__ __forceinline__ void init_barriers(Shared& s, u32 stages) {
  auto init = [](u64& bar, u32 arrivals) { ptx::mbarrier_init(ptx::shared_address(&bar), arrivals); };
  for (u32 i = 0; i < stages; ++i) init(s.full[i], ptx::LOAD_ARRIVALS), init(s.empty[i], MATH_WARPS);
  for (u32 i = 0; i < SLOTS; ++i) init(s.ready[i], FEEDERS), init(s.done[i], MATH_WARPS);
  for (u32 i = 0; i < STORERS; ++i)
    for (u32 j = 0; j < TILE_BUFFERS; ++j) init(s.tile_full[i][j], MATH_WARPS), init(s.tile_empty[i][j], 1);
  for (u32 i = 0; i < 2; ++i) init(s.routed[i], 1), init(s.routing_free[i], MATH_WARPS + FEEDERS + STORERS);
  init(s.math_team, MATH_WARPS), init(s.feeder_team, FEEDERS);
  ptx::mbarrier_init_fence();
}

#ifdef MK_FIXED_SHARED
static_assert((sizeof(Shared) + 127) / 128 * 128 <= MK_FIXED_SHARED, "the host reserves less than the fixed part takes");
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) megakernel(const __grid_constant__ Params params) {
  const Model& p = (const Model&)params;
  Shared& s = shared_block();
  char* ring = block_memory + (sizeof(Shared) + 127) / 128 * 128;
  u32* q = (u32*)(ring + p.stages * CHUNK);
  u32 q_stride = p.head_dim / 2 + 4;
  u32* layers = q + 2 * TASK_ROWS * ROWS * q_stride + p.held;  // behind those held, since they are no multiple of 16 bytes
  u32* x = layers + p.layer_count * (sizeof(Layer) / 4);  // last, since it is as long as the step has rows
  for (u32 i = threadIdx.x; i < 2 * TASK_ROWS * ROWS * q_stride; i += THREADS) q[i] = 0;  // heads beyond the group stay zero
  for (u32 i = threadIdx.x; i < p.layer_count * (sizeof(Layer) / 4); i += THREADS) layers[i] = __ldg((const u32*)p.layers + i);
  for (u32 i = threadIdx.x; i < p.rows; i += THREADS) {
    s.position[i] = ((const u32*)p.position)[i], s.first[i] = ((const u32*)p.first)[i];
    s.sequence[i] = ((const u32*)p.sequence)[i], s.wants[i] = ((const u32*)p.wants)[i];
  }
  for (u32 i = threadIdx.x; i < STAMPS; i += THREADS) s.stamp[i].owner = 0;
  if (threadIdx.x == 0) {
#if MK_ROWS == 1
    s.turns[0] = s.turns[1] = 0;
#endif
    s.poll_budget = p.poll_budget, s.abort = (Abort*)p.abort;
    init_barriers(s, p.stages);
  }
#if MK_ROWS > 8
  if (threadIdx.x == 0) {
    u32 first = ((const u32*)p.task_ptr)[blockIdx.x];
    s.tasks = (const Task*)p.tasks + first, s.count = ((const u32*)p.task_ptr)[blockIdx.x + 1] - first;
  }
  __syncthreads();
  Block b = {p, s, ring, x, q, (const Layer*)layers, q_stride, blockIdx.x, threadIdx.x & 31, threadIdx.x >> 5};
#else
  __syncthreads();
  u32 first = ((const u32*)p.task_ptr)[blockIdx.x];
  Block b = {p, s, ring, x, q, (const Layer*)layers, q_stride, blockIdx.x, threadIdx.x & 31, threadIdx.x >> 5,
             (const Task*)p.tasks + first, ((const u32*)p.task_ptr)[blockIdx.x + 1] - first};
#endif
  if (b.warp < MATH_WARPS) Math(b).run();
  else if (b.warp == LOADER) Loader(b).run();
  else if (b.warp < STORER0) Feeder(b).run();
  else Storer(b).run();
#if MK_COPIES_TASKS
  ptx::await_words<0>();  // of tasks that nobody came to
#endif
}
