// The amx_bf16 kernels. A file of its own because CMake gives compiler flags to files.
#define STATEMARK_AMX
#include "target_avx512.cpp"
