/* test_random.c - long random runs.
 *
 * KV_RANDOM_STEPS sets the steps of all pools together, KV_RANDOM_SEED the first seed:
 *
 *      KV_RANDOM_STEPS=1000000 KV_RANDOM_SEED=7 test_random */

#include "random_ops.h"

#include <stdlib.h>

static uint64_t number(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

/* Pools of 1 to 64 blocks, 95 to 100 % occupied, follow the model through every step,
 * and every held block keeps its bytes. */
CASE(a_long_run_at_full_occupancy_keeps_the_invariants)
{
    const uint64_t steps = number("KV_RANDOM_STEPS", 32000), seed = number("KV_RANDOM_SEED", 1);
    for (uint32_t n = 1; n <= 64; n++)
        random_ops(shape(n, 2, 1, 1, 2), seed + n, (size_t)(steps * n / 64 - steps * (n - 1) / 64), 95 + n % 6);
}

/* The same with several layers and heads, a row to skip in each. */
CASE(a_long_run_with_layers_and_heads_keeps_the_invariants)
{
    const uint64_t steps = number("KV_RANDOM_STEPS", 32000), seed = number("KV_RANDOM_SEED", 1);
    for (uint32_t n = 1; n <= 16; n++) random_ops(shape(n, 3, 2, 2, 2), seed + n, (size_t)(steps / 16), 0);
}

CASES(a_long_run_at_full_occupancy_keeps_the_invariants, a_long_run_with_layers_and_heads_keeps_the_invariants)
