/* swiss_portable.c - the other half of swiss_white.h. */

#define TL_SWISS_PORTABLE
#define WHITE(name) portable_##name
#define WHITE_OPS white_portable

#include "swiss_white.c"
