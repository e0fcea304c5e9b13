// The read ceiling: what the ring streams when nothing is computed and nothing awaited.  One block an SM; a loader brings chunks in,
// dealt to the blocks in turn, and a consumer releases each as soon as it has landed.
#include "ptx.cuh"

// A matrix of `bytes` (a multiple of 512) at `at`; its first chunk is chunk `first` of the list.
struct Segment { u64 at, bytes, first; };

struct Stream {
  u64 segments, abort;  // Segment[count + 1], the last one empty: a bound; u32: a wait was given up
  u64 chunks;           // of the list
  u32 blocks, rounds, stages, poll_budget;
};

static constexpr u32 MAX_STAGES = 16, THREADS = 64;  // the loader's warp, the consumer's

struct Barriers { u64 full[MAX_STAGES], empty[MAX_STAGES]; };  // the ring lies behind them

extern __shared__ __align__(128) char block_memory[];

struct Ring {
  const Stream& p;
  Barriers& bars;
  u32 lane, stage = 0, phase = 0;

  __device__ __forceinline__ char* chunk() const { return block_memory + sizeof(Barriers) + stage * CHUNK; }
  __device__ __forceinline__ void next() {
    if (++stage == p.stages) stage = 0, phase ^= 1;
  }

  // Until the phase is over, for the whole warp.  False: the polls are used up here, or elsewhere.
  __device__ __forceinline__ bool await(u64& bar, u32 parity) const {
    volatile u32* abort = (volatile u32*)p.abort;
    u32 at = ptx::shared_address(&bar), polls = 0;
    bool over = ptx::phase_over(at, parity);
    for (; !over && polls <= p.poll_budget && ((polls & 63) != 63 || *abort == 0); ++polls) over = ptx::phase_over(at, parity);
    if (!over) *abort = 1;
    return !__any_sync(~0u, !over);
  }
};

__device__ __forceinline__ void load(Ring& r) {
  const Stream& p = r.p;
  u64 chunk = blockIdx.x;
  for (u32 round = 0; round < p.rounds; ++round, chunk -= p.chunks) {
    const Segment* segment = (const Segment*)p.segments;
    for (; chunk < p.chunks; chunk += p.blocks) {
      while (chunk >= __ldg(&segment[1].first)) ++segment;
      u64 from = (chunk - __ldg(&segment->first)) * CHUNK, left = __ldg(&segment->bytes) - from;
      if (!r.await(r.bars.empty[r.stage], r.phase ^ 1)) return;
      ptx::load_chunk(ptx::shared_address(r.chunk()), (const char*)__ldg(&segment->at) + from, left < CHUNK ? (u32)left : CHUNK,
                      ptx::shared_address(&r.bars.full[r.stage]), r.lane);
      r.next();
    }
  }
}

__device__ __forceinline__ void consume(Ring& r) {
  u64 total = r.p.chunks * r.p.rounds;
  for (u64 chunk = blockIdx.x; chunk < total; chunk += r.p.blocks, r.next()) {
    if (!r.await(r.bars.full[r.stage], r.phase)) return;
    if (r.lane == 0) ptx::arrive(ptx::shared_address(&r.bars.empty[r.stage]));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) stream(const __grid_constant__ Stream p) {
  Ring r = {p, *(Barriers*)block_memory, threadIdx.x & 31};
  if (threadIdx.x < p.stages) {
    ptx::mbarrier_init(ptx::shared_address(&r.bars.full[threadIdx.x]), ptx::LOAD_ARRIVALS);
    ptx::mbarrier_init(ptx::shared_address(&r.bars.empty[threadIdx.x]), 1);
  }
  ptx::mbarrier_init_fence();
  __syncthreads();
  if (threadIdx.x < 32) load(r);
  else consume(r);
}
