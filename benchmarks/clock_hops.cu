// Two-way flag hops between block 0 and each other block: stamps of the global timer on both sides of every hop.
#include "ptx.cuh"

extern "C" __global__ void hops(u32* flags, u64* stamps, u32 rounds, u32 partner) {
  u32 *there = flags, *back = flags + 32;
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    for (u32 i = 1; i <= rounds; ++i) {
      u64 sent = ptx::global_ns();
      ptx::add_release(there);
      for (u32 polls = 0; ptx::load_acquire(back) < i; ++polls) if (polls > 4000000) return;
      stamps[4 * (i - 1)] = sent, stamps[4 * (i - 1) + 3] = ptx::global_ns();
    }
  } else if (blockIdx.x == partner) {
    for (u32 i = 1; i <= rounds; ++i) {
      for (u32 polls = 0; ptx::load_acquire(there) < i; ++polls) if (polls > 4000000) return;
      u64 seen = ptx::global_ns();
      stamps[4 * (i - 1) + 1] = seen, stamps[4 * (i - 1) + 2] = ptx::global_ns();
      ptx::add_release(back);
    }
  }
}
