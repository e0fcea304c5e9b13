// Where the figures of mkviz/machine.py come from that are no bandwidth ceiling: what one SM can stream, how long one chunk
// takes, an atomic there and back, and the gap between kernels of a CUDA graph.
// nvcc -O3 -std=c++17 -arch=sm_90a -o machine h200_machine.cu && ./machine
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>
#include <algorithm>
#include <vector>

#define CHECK(call)                                                                                  \
  do {                                                                                               \
    cudaError_t e_ = (call);                                                                         \
    if (e_ != cudaSuccess) { printf("%s: %s\n", #call, cudaGetErrorString(e_)); return 1; }          \
  } while (0)

constexpr uint32_t kChunk = 16384;

__device__ __forceinline__ uint32_t shared(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void fetch(char* to, const char* from, uint64_t* bar) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(bar)), "r"(kChunk) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared(to)),
               "l"(from), "r"(kChunk), "r"(shared(bar))
               : "memory");
}

__device__ __forceinline__ void await(uint64_t* bar, uint32_t parity) {
  uint32_t ok = 0;
  while (!ok)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0,1,0,p;}"
                 : "=r"(ok)
                 : "r"(shared(bar)), "r"(parity)
                 : "memory");
}

// Every block streams `count` chunks of its own through `stages` stages.
__global__ void stream(const char* src, uint64_t stride, int count, int stages) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) uint64_t bar[16];
  for (int s = 0; s < stages; ++s) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared(&bar[s])));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  const char* mine = src + blockIdx.x * stride;
  for (int i = 0; i < stages && i < count; ++i) fetch(ring + i * kChunk, mine + (uint64_t)i * kChunk, &bar[i]);
  for (int i = 0; i < count; ++i) {
    int s = i % stages;
    await(&bar[s], i / stages & 1);
    if (i + stages < count) fetch(ring + s * kChunk, mine + (uint64_t)(i + stages) * kChunk, &bar[s]);
  }
}

// Cycles of `count` atomics, each waited for, on one word for all blocks.
__global__ void tickets(uint32_t* word, int count, unsigned long long* cycles) {
  uint32_t got = 0;
  unsigned long long t = clock64();
  for (int i = 0; i < count; ++i) got = atomicAdd(word, 1 + (got >> 31));
  cycles[blockIdx.x] = clock64() - t + (got == 1);
}

__global__ void nothing() {}

template <class F>
float median_us(F f, int reps = 21) {
  cudaEvent_t a, b;
  cudaEventCreate(&a), cudaEventCreate(&b);
  std::vector<float> ms(reps);
  f();
  for (float& x : ms) { cudaEventRecord(a), f(), cudaEventRecord(b), cudaEventSynchronize(b), cudaEventElapsedTime(&x, a, b); }
  std::sort(ms.begin(), ms.end());
  return ms[reps / 2] * 1e3f;
}

int main() {
  cudaDeviceProp prop;
  CHECK(cudaGetDeviceProperties(&prop, 0));
  const uint64_t total = 16ull << 30;
  char* src;
  uint32_t* word;
  unsigned long long* cycles;
  CHECK(cudaMalloc(&src, total));
  CHECK(cudaMemset(src, 1, total));
  CHECK(cudaMalloc(&word, 4));
  CHECK(cudaMalloc(&cycles, 132 * 8));
  int khz = 0;
  CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
  printf("%s, %d SMs, %d kHz at most\n", prop.name, prop.multiProcessorCount, khz);
  CHECK(cudaFuncSetAttribute(stream, cudaFuncAttributeMaxDynamicSharedMemorySize, 11 * kChunk));

  // Differences of two lengths take out the launch.  Every repetition reads other memory than the one before.
  for (int stages : {1, 2, 4, 11})
    for (int sms : {1, 2, 8, 33, 66, 100, 132}) {
      uint64_t at = 0;
      auto run = [&](int count) {
        const uint64_t each = (uint64_t)count * kChunk;
        return median_us([&] {
          at = at + 2 * sms * each <= total ? at + sms * each : 0;
          stream<<<sms, 1, 11 * kChunk>>>(src + at, each, count, stages);
        });
      };
      float ns = (run(3000) - run(1000)) * 1e3f / 2000;
      printf("stages %2d, SMs %3d: %7.1f ns a chunk, %6.1f GB/s each, %7.1f GB/s\n", stages, sms, ns, kChunk / ns,
             kChunk / ns * sms);
    }
  CHECK(cudaDeviceSynchronize());

  for (int sms : {1, 33, 132}) {
    tickets<<<sms, 1>>>(word, 1000, cycles);
    CHECK(cudaDeviceSynchronize());
    tickets<<<sms, 1>>>(word, 1000, cycles);
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned long long> host(sms);
    CHECK(cudaMemcpy(host.data(), cycles, sms * 8, cudaMemcpyDeviceToHost));
    double sum = 0;
    for (unsigned long long c : host) sum += c;
    printf("atomic there and back, %3d SMs at one word: %.0f cycles\n", sms, sum / sms / 1000);
  }

  cudaStream_t s;
  CHECK(cudaStreamCreate(&s));
  for (int threads : {32, 512}) {
    float us[2];
    for (int k = 0; k < 2; ++k) {
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
      for (int i = 0; i < (k ? 1500 : 500); ++i) nothing<<<132, threads, 0, s>>>();
      CHECK(cudaStreamEndCapture(s, &graph));
      CHECK(cudaGraphInstantiate(&exec, graph, 0));
      cudaEvent_t a, b;
      cudaEventCreate(&a), cudaEventCreate(&b);
      float best = 1e9f, ms;
      for (int r = 0; r < 15; ++r) {
        cudaEventRecord(a, s), cudaGraphLaunch(exec, s), cudaEventRecord(b, s), cudaEventSynchronize(b);
        cudaEventElapsedTime(&ms, a, b), best = std::min(best, ms);
      }
      us[k] = best * 1e3f;
    }
    printf("empty kernels of 132 x %d threads in a graph: %.0f ns each\n", threads, us[1] - us[0]);
  }
  CHECK(cudaDeviceSynchronize());
  return 0;
}
