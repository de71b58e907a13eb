// Tests only: the amx_bf16 kernels on any x86 with AVX2, with tiles in memory. Its bits are those of the hardware.
#define STATEMARK_AMX
#define STATEMARK_EMULATE_AVX512
#include "target_avx512.cpp"
