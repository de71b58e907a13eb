// Tests only: the AVX-512 BF16 kernels on any x86 with AVX2, through SIMDe. A file of its own because CMake gives
// compiler flags to files. SIMDe adds the lower product of a bf16 pair first, Intel's hardware the upper one: the same
// code path, not the same bits as the real instruction set.
#define STATEMARK_EMULATE_AVX512
#include "target_avx512.cpp"
