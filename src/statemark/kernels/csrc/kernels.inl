// Everything that is compiled once per instruction set. The including file has chosen Vec and an inner namespace.

#include "vecmath.inl"
#include "tile.inl"
#include "elementwise.inl"
#include "linear.inl"
#include "sampling.inl"
#include "gdn.inl"
#include "attend.inl"
#include "attention.inl"
