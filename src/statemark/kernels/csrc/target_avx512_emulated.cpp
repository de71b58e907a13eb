// Tests only: the AVX-512 BF16 kernels on any x86 with AVX2, through SIMDe. A file of its own because CMake gives
// compiler flags to files. Its bits are those of the hardware (tests/kernels/test_golden.py, test_linear.py).
#define STATEMARK_EMULATE_AVX512
#include "target_avx512.cpp"
