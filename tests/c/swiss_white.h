/* swiss_white.h - the hash map opened up for test_swiss.c.
 *
 * csrc/ds/swiss.c is compiled twice more, under other names: swiss_white.c with the
 * group operations the library itself uses, swiss_portable.c with the portable ones.
 * Each hands out its functions and what the public interface hides. */
#ifndef TL_TEST_SWISS_WHITE_H
#define TL_TEST_SWISS_WHITE_H

#include "tinyllm/ds.h"

typedef struct {
    tl_status (*create)(size_t hint, tl_map **out); /* a map without a seed */
    tl_status (*put)(tl_map *m, uint64_t k, uint64_t v);
    int (*get)(const tl_map *m, uint64_t k, uint64_t *v);
    void (*prefetch)(const tl_map *m, uint64_t k);
    int (*del)(tl_map *m, uint64_t k);
    size_t (*len)(const tl_map *m);
    void (*destroy)(tl_map *m);

    tl_status (*create_seeded)(size_t hint, tl_map **out); /* as the library does */
    uint64_t (*seed)(const tl_map *m);

    /* The group operations, on 16 control bytes aligned to 16. */
    uint32_t (*match)(const uint8_t *ctrl, uint8_t byte);
    uint32_t (*match_open)(const uint8_t *ctrl);

    uint64_t (*hash)(uint64_t key);
    size_t (*cap)(const tl_map *m);        /* slots */
    size_t (*tombstones)(const tl_map *m); /* counted, not the map's own figure */
    const char *(*fault)(const tl_map *m); /* a figure that is not what the slots say, or NULL */
    int (*grow_the_largest)(void);         /* what grow() says to a map of CAP_MAX slots */
    size_t *work;                          /* groups loaded so far: what a call costs */
} white_ops;

extern const white_ops white_native, white_portable;

#endif
