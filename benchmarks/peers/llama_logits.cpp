// The logits of token sequences as llama.cpp computes them, for comparing precisions on exactly the same tokens.
//
//   llama_logits MODEL.gguf THREADS LONGEST
//
// reads from standard input, again and again: int32 count, then int32 token ids; answers each with float32
// [count, vocabulary] on standard output. Every sequence starts from nothing.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

static void fail(const char* what) {
  std::fprintf(stderr, "llama_logits: %s\n", what);
  std::exit(1);
}

int main(int argc, char** argv) {
  if (argc != 4) fail("three arguments are needed: MODEL.gguf THREADS LONGEST");
  const int32_t longest = std::atoi(argv[3]);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) fail("the model can't be loaded");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = longest;
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
  llama_context* context = llama_init_from_model(model, params);
  if (!context) fail("no context");
  const size_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_batch batch = llama_batch_init(longest, 0, 1);
  std::vector<int32_t> ids(longest);
  int32_t count;
  while (std::fread(&count, sizeof count, 1, stdin) == 1) {
    if (count < 1 || count > longest) fail("a sequence is longer than LONGEST");
    if (std::fread(ids.data(), sizeof(int32_t), count, stdin) != size_t(count)) fail("a sequence is cut off");
    llama_memory_clear(llama_get_memory(context), true);
    batch.n_tokens = count;
    for (int32_t i = 0; i < count; i++) {
      batch.token[i] = ids[i];
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    if (llama_decode(context, batch) != 0) fail("llama_decode");
    for (int32_t i = 0; i < count; i++)
      std::fwrite(llama_get_logits_ith(context, i), sizeof(float), vocabulary, stdout);
    std::fflush(stdout);
  }
}
