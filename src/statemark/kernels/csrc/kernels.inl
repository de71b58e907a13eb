// Everything that is compiled once per instruction set. The including file has chosen Vec and an inner namespace.

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

#include "vecmath.inl"
#include "tile.inl"
#ifdef STATEMARK_AMX
#include "amx.inl"
#endif
#include "elementwise.inl"
#include "linear.inl"
#ifdef STATEMARK_AMX
#include "linear_amx.inl"
#endif
#include "linear_int.inl"
#include "sampling.inl"
#include "delta.inl"
#include "gdn.inl"
#include "attend.inl"
#ifdef STATEMARK_AMX
#include "attend_amx.inl"
#endif
#include "attention.inl"
#include "limits.inl"
