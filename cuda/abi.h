// Structs that the host writes and the kernel reads, or the other way round.  The Python twins are numpy dtypes (mkviz/record.py,
// engine/cuda/abi.py); a test compiles this file against their sizes and offsets.  A new field: here, there, nowhere else.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static constexpr u32 CHUNK = 16384;   // bytes of a ring stage: 16 weight rows x 512 k, or a page of keys or values of one head
static constexpr u32 CHUNK_K16 = 32;  // k16 fragments in a chunk
static constexpr u32 FRAGMENT = 512;  // bytes of a 16 x 16 bf16 fragment: 32 lanes x 16 bytes
static constexpr u32 PAGE = 64;       // tokens of a KV page
static constexpr u32 SPLIT = 256;     // keys of an attention split
static constexpr u32 MAX_WAITS = 2, MAX_RAISES = 2;
static constexpr u32 NO_COUNTER = 0xffffffffu;
static constexpr u32 MAX_TOP_K = 16;

enum Op : u32 { EMBED, QKV, ATTENTION, MERGE, O_PROJ, ROUTER, EXPERT_UP, SHARED_UP, DENSE_UP, EXPERT_DOWN, DENSE_DOWN, LM_HEAD, PICK, SAMPLE, NORM, TOP_K };

// One task, in the order of its SM's list.  128 bytes.
struct Task {
  u32 id, op, layer, slot;
  u32 tile, a, b, c;           // args as in engine/builder.py
  u32 d, k16, blocks, tail;    // k16 fragments of a row block (of one expert, when routed); row blocks; k16 of the shared part
  u64 weight, stride;          // packed row block; bytes from one expert to the next
  u64 weight2;                 // EXPERT_DOWN: the shared experts' row block
  u32 waits, raises;
  u32 wait[MAX_WAITS], need[MAX_WAITS], wait_arrivals[MAX_WAITS];
  u32 raise[MAX_RAISES], order, routed;  // order: index in the SM's list; routed: routed layers that the list has entered by then
  u32 storer, next;            // whose it is; index of its next one
};

struct Layer {
  u64 norm, norm2;                     // f32[hidden]
  u64 qkv_bias, o_bias;                // f32, 0: none
  u64 gate_bias, up_bias, down_bias;   // f32, 0: none
  u32 rope, window, splits, routed;    // RoPE or not; keys seen (0: all); split slots; MoE
  u32 qkv_counter, qkv_arrivals, router_counter, router_arrivals;  // for the loader: KV head g is qkv_counter + g * qkv_step
  u32 qkv_step, pad0;
  u64 head_norm;                       // f32[2, head_dim]: of each head of Q, of each of K
};

// How a row's token is picked (docs/sampling.md).
enum Ask : u32 { DRAWN = 1, TOLD = 2 };    // by chance; with log-probabilities
static constexpr u32 CANDIDATES = 1024;    // of a row, among which top_k and top_p cut
static constexpr u32 MAX_TOLD = 20;        // tokens beside the picked one
struct Sampling {
  u32 mode;                                // 0: greedy, no more
  float temperature;
  u32 top_k, tops;                         // 0: all; tokens to be told
  double top_p;
  u64 min_weight, seed;                    // min_weight: what min_p makes of it
  u32 choice, pad;
};

// What log-probabilities are made of: weight of the vocabulary at temperature 1, largest logit, the picked token's; the largest.
struct Told {
  u64 weight;
  float top, logit;
  u32 count, pad;
  u32 token[MAX_TOLD];
  float logits[MAX_TOLD];
};

// Where a role is: 16 bytes, written with one store.
struct RoleState { u32 task, state, counter, target; };

// Why a launch was given up: written once.
struct Abort { u32 word, sm, role, task; u32 counter, value, target, step; };

struct Params {
  u64 tasks, task_ptr, layers;          // Task[], u32[sms + 1], Layer[]
  u64 counters, abort, stop, go;        // u32[], Abort, u32 (set by the host: end after this step), u32[steps]
  u64 embed, head;                      // packed fragments
  u64 final_norm, rope_table;           // f32[hidden]; float2[positions, head_dim / 2]: cos, sin
  u64 token, position, first, sequence, wants;  // u32[8] each; first: first position of the row's sequence in this step
  u64 page_table;                       // i32[8, table_width]
  u64 kv;                               // pages: [page][layer][kv head][K, V] of 64 x head_dim bf16 in fragment order
  u64 x, mid, q;                        // f32[2, 8, hidden], f32[8, hidden], bf16[8, heads, head_dim]
  u64 part_out, part_max, part_sum;     // f32[8, heads, splits, head_dim], f32[8, heads, splits]
  u64 attention;                        // bf16 fragments of [heads * head_dim] x 8
  u64 router_logits;                    // f32[8, experts]
  u64 expert_hidden, dense_hidden, shared_hidden;  // bf16 fragments of [slots * width] x 8, [width] x 8
  u64 logits, tile_max, tile_arg, greedy;  // f32[8, vocab], f32[8, tiles], u32[8, tiles], u32[steps, 8]
  u64 routes;                           // u32[layers, ROUTE_SLOTS of block.cuh]: rows of each slot << 16 | its expert + 1; 0: none
  u64 records, live, limit, states;     // Record rings of the storers, live lines, u64[rings], RoleState[sms, roles]
  u32 hidden, heads, kv_heads, head_dim;
  u32 experts, top_k, expert_k16, dense_k16;  // expert_k16: k16 fragments of an expert's width
  u32 shared_k16, vocab, layer_count, rows;
  u32 table_width, splits, head_tiles, ring_capacity;
  u32 epoch, steps, step_low, poll_budget;   // steps these counters have seen; steps of this launch; first step
  u32 parallel, centre, interleaved, router_kind;
  u32 renormalise, shared_average, stages, x_stride;  // x_stride: u32 words between rows of the resident activations
  u32 picked_counter, picked_arrivals, step_high, delay_seed;
  float eps, logit_scale, attention_scale;
  u32 held;  // words of shared memory for the activations of a product that are read once; 0: they stay in global memory
  u64 head_scratch;                           // f32[sms, storers, 8, 32, 4]: heads of Q and K between product and norm
  u64 sampling, told;                         // Sampling[rows], Told[steps, rows]
  u64 tile_sums, part_sums;                  // u64[rows, head_tiles], u64[rows, 2, parts]: weights of tiles; of parts, at 1 too
  u64 candidates, weighed;                    // (token, logit)[rows, CANDIDATES]; (key, weight) of the same
  u64 cursor;                                 // u32[rows]: how many candidates there are, and whether any logit is bad
  u32 head_tile, sample_parts;                // tokens of an LM-head tile; SAMPLE tasks of a row
  u32 tag, pad0;                              // of the first layer of the first step: see tagged.cuh
  u64 normed;                                 // bf16 fragments of [hidden] x 8 for each eight rows: where norms are tasks
  u64 storer_first;                           // u32[sms, storers]: index of each one's first task
  u64 chosen, chosen_weight;                  // u32[rows, MAX_TOP_K], ascending, f32 of the same: where top-k is a task
};

// Ring records: see mkviz/record.py.
struct Record { u32 claim, ready, begin, seq, end, publish, task, tail; };
struct Live {
  u64 head, step;
  u32 task, state;
  u64 since;
  u32 counter, target;
  u64 anchor_ns, anchor_cycles, anchor_step;
  u64 pad[8];
};
