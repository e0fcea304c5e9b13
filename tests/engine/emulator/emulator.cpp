// Fibers and their scheduler; emulate() is what Python calls.
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

#include "megakernel.cu"

namespace emu {

struct Warp {
  alignas(32) char slots[2][32][32];
  unsigned generation = 0, arrived = 0, kind = 0;
};

struct Fiber {
  jmp_buf at;
  bool started = false, done = false;
  unsigned block, thread;
  unsigned* wakes = nullptr;  // not before this word has another value
  unsigned asleep = 0;
};

static constexpr size_t STACK = 64 << 10;
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static std::vector<char*> memory;
static std::vector<unsigned> in_block, block_generation;
static char* stacks;
static Fiber* now;
static jmp_buf scheduler;
static const void* params;
static void (*body)(const void*);
static unsigned threads_of_block, grid_seed;
struct Copy { Fiber* of; std::function<void()> land; };
static std::vector<Copy> copies;  // on their way

Index thread_index() { return {now->thread}; }
Index block_index() { return {now->block}; }
char* shared_memory() { return memory[now->block]; }
unsigned lane() { return now->thread & 31; }

void yield() {
  if (_setjmp(now->at) == 0) _longjmp(scheduler, 1);
}

void later(std::function<void()> copy) {
  if (grid_seed) copies.push_back({now, std::move(copy)});
  else copy();
}

static void sleep_until_changed(unsigned* word) {
  now->wakes = word, now->asleep = *word;
  while (*word == now->asleep) yield();
  now->wakes = nullptr;
}

char* meet(Kind kind, const void* mine, unsigned bytes) {
  Warp& w = warps[now->block * (threads_of_block / 32) + now->thread / 32];
  char* slots = (char*)w.slots[w.generation & 1];
  if (w.arrived == 0) w.kind = kind;
  if (w.kind != kind) fprintf(stderr, "warp %u: kinds %u and %u meet\n", now->thread / 32, w.kind, kind), abort();
  memcpy(slots + lane() * 32, mine ? mine : slots, mine ? bytes : 0);
  if (++w.arrived == 32) w.arrived = 0, ++w.generation;
  else sleep_until_changed(&w.generation);
  return slots;
}

void sync_block() {
  unsigned b = now->block;
  if (++in_block[b] == threads_of_block) in_block[b] = 0, ++block_generation[b];
  else sleep_until_changed(&block_generation[b]);
}

static void run() {
  body(params);
  now->done = true;
  _longjmp(scheduler, 1);
}

[[gnu::noinline]] static void enter(Fiber& f, size_t index) {
  now = &f;
  if (_setjmp(scheduler)) return;
  if (f.started) _longjmp(f.at, 1);
  f.started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks + index * STACK, context.uc_stack.ss_size = STACK, context.uc_link = nullptr;
  makecontext(&context, run, 0);
  setcontext(&context);
}

// Runs the grid; `shared` bytes of each block's memory, which is full of ones before and followed by a page that faults.
static void grid(void (*function)(const void*), const void* arguments, unsigned blocks, unsigned in_each, unsigned shared, unsigned seed) {
  size_t threads = (size_t)blocks * in_each, page = 4096, room = (shared + page - 1) / page * page;
  auto map = [](size_t n) { return (char*)mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); };
  params = arguments, body = function, threads_of_block = in_each, grid_seed = seed;
  stacks = map(threads * STACK);
  fibers.assign(threads, Fiber()), warps.assign(threads / 32, Warp());
  in_block.assign(blocks, 0), block_generation.assign(blocks, 0), memory.clear();
  std::vector<char*> maps;
  for (unsigned b = 0; b < blocks; ++b) {
    maps.push_back(map(room + page));
    mprotect(maps[b] + room, page, PROT_NONE);
    memory.push_back(maps[b] + room - (shared + 127) / 128 * 128);
    memset(memory[b], 0xff, shared);
  }
  for (size_t i = 0; i < threads; ++i) fibers[i].block = i / in_each, fibers[i].thread = i % in_each;
  std::vector<unsigned> order(threads / 32);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  unsigned random = seed * 2654435761u + 1;
  auto draw = [&](unsigned n) {
    random = random * 1664525u + 1013904223u;
    return (unsigned)((uint64_t)random * n >> 32);
  };
  std::vector<unsigned> rests(order.size());  // rounds for which a warp does nothing, now and then
  for (bool left = true; left;) {
    left = false;
    if (seed)
      for (size_t i = order.size() - 1; i; --i) std::swap(order[i], order[draw(i + 1)]);
    for (size_t i = copies.size(); i--;)
      if (draw(8) == 0) {
        now = copies[i].of, copies[i].land();
        std::swap(copies[i], copies.back()), copies.pop_back();
      }
    for (unsigned w : order) {
      if (seed && draw(500) == 0) rests[w] = draw(200);
      unsigned turns = rests[w] ? --rests[w], 0 : seed ? draw(4) : 1;
      for (unsigned t = 0; t < turns; ++t)
        for (unsigned i = w * 32; i < w * 32 + 32; ++i) {
          Fiber& f = fibers[i];
          if (!f.done && !(f.wakes && *f.wakes == f.asleep)) enter(f, i);
        }
      for (unsigned i = w * 32; i < w * 32 + 32; ++i) left = left || !fibers[i].done;
    }
  }
  for (char* m : maps) munmap(m, room + page);
  munmap(stacks, threads * STACK);
}

}  // namespace emu

extern "C" void emulate(const void* params, unsigned blocks, unsigned shared, unsigned seed) {
  emu::grid([](const void* p) { megakernel(*(const Params*)p); }, params, blocks, THREADS, shared, seed);
}

// The experts of a row of router logits, and what they count for, by a warp alone.
struct Routes { const Model* params; u32* expert; float* weight; };

static void route_one(const void* arguments) {
  auto [params, expert, weight] = *(const Routes*)arguments;
  float logits[MAX_EXPERTS / 32];
  u32 used[MAX_EXPERTS / 32] = {};
  for (u32 q = 0; q < MAX_EXPERTS / 32; ++q) {
    u32 id = q * 32 + emu::lane();
    logits[q] = id < params->experts ? ((const float*)params->router_logits)[id] : NEG_INF;
  }
  route_row(*params, logits, emu::lane(), used, [&, e = expert, w = weight](u32 k, u32 id, float v) { e[k] = id, w[k] = v; });
}

extern "C" void emulate_route(const void* params, unsigned* expert, float* weight) {
  Routes routes = {(const Model*)params, expert, weight};
  emu::grid(route_one, &routes, 1, 32, 128, 0);
}

#if MK_SAMPLING
// SAMPLE and PICK of every row from its logits, by a warp alone: `picked` gets their tokens.  Position of row r: position + r.
struct Picks { const Model* params; u32 position; u32* picked; };

static void pick_rows(const void* arguments) {
  auto [params, position, picked] = *(const Picks*)arguments;
  const Model& p = *params;
  for (u32 row = 0; row < p.rows; ++row) {
    const float* logits = (const float*)p.logits + (u64)row * p.vocab;
    u32 greedy = 0;
    for (u32 i = 0; i < p.vocab; ++i)
      if (logits[i] > logits[greedy]) greedy = i;
    for (u32 part = 0; part < p.sample_parts; ++part) sample(p, row, part, p.sample_parts, emu::lane());
    u32 token = pick_row(p, row, position + row, p.sample_parts, logits[greedy], greedy, ((Told*)p.told)[row], emu::lane());
    if (emu::lane() == 0) picked[row] = token;
  }
}

extern "C" void emulate_picks(const void* params, unsigned position, unsigned* picked) {
  Picks picks = {(const Model*)params, position, picked};
  emu::grid(pick_rows, &picks, 1, 32, 128, 0);
}

// Weights of `n` logits, as SAMPLE has them and as PICK.
extern "C" void emulate_weights(const float* logits, unsigned n, float top, float temperature, u64* sampled, u64* picked) {
  Divisor by(temperature);
  for (u32 i = 0; i < n; ++i) {
    float x = logits[i] - top;
    sampled[i] = weight_of(by.quick() ? by.quotient(x) : x / temperature);
    picked[i] = weigh(logits[i], top, temperature);
  }
}
#endif
