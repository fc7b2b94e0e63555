/* tl_vec, the growable array. */
#include "kit.h"

/* init takes no memory and leaves an empty array. */
CASE(init_is_empty)
{
    tl_vec v;
    memset(&v, 0xEE, sizeof v);
    CHECK_STATUS(tl_vec_init(&v, 12), TL_OK);
    CHECK(!v.data);
    CHECK_EQ(v.len, 0);
    CHECK_EQ(v.cap, 0);
    CHECK_EQ(v.elem, 12);
    CHECK_EQ(kit_allocs(), 0);
}

/* NULL and elements of 0 bytes are refused, and nothing is written. */
CASE(init_refuses)
{
    tl_vec v, before;
    memset(&v, 0xEE, sizeof v);
    before = v;
    CHECK_STATUS(tl_vec_init(NULL, 4), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_init");
    CHECK_STATUS(tl_vec_init(&v, 0), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_init");
    CHECK_BYTES(&v, &before, sizeof v);
}

/* Elements of any size come back in the order they were pushed. */
CASE(push_keeps_the_elements)
{
    static const size_t sizes[] = {1, 2, 3, 4, 7, 8, 16, 24, 100};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        unsigned char x[100];
        tl_vec v;
        CHECK_STATUS(tl_vec_init(&v, sizes[s]), TL_OK);
        for (size_t i = 0; i < 50; i++) {
            memset(x, (int)(i + s), sizeof x);
            CHECK_STATUS(tl_vec_push(&v, x), TL_OK);
            CHECK_EQ(v.len, i + 1);
        }
        for (size_t i = 0; i < 50; i++) {
            memset(x, (int)(i + s), sizeof x);
            CHECK_BYTES(tl_vec_at(&v, i), x, sizes[s]);
            CHECK(tl_vec_at(&v, i) == (char *)v.data + i * sizes[s]);
        }
        CHECK_EQ((uintptr_t)v.data % _Alignof(max_align_t), 0);
        tl_vec_free(&v);
    }
}

/* Growth at least doubles the room: 1,000 pushes ask for memory at most 11 times. */
CASE(growth_at_least_doubles)
{
    tl_vec v;
    CHECK_STATUS(tl_vec_init(&v, sizeof(int)), TL_OK);
    for (int i = 0; i < 1000; i++) {
        size_t cap = v.cap;
        CHECK_STATUS(tl_vec_push(&v, &i), TL_OK);
        CHECK(v.cap == cap || (v.cap >= 2 * cap && v.len == cap + 1));
    }
    CHECK(kit_allocs() <= 11);
    CHECK_EQ(kit_live(), 1);
    tl_vec_free(&v);
}

/* Within reserved room a push never allocates. */
CASE(reserved_room_is_used)
{
    tl_vec v;
    CHECK_STATUS(tl_vec_init(&v, sizeof(int)), TL_OK);
    CHECK_STATUS(tl_vec_reserve(&v, 100), TL_OK);
    CHECK(v.cap >= 100);
    CHECK_EQ(v.len, 0);
    void *data = v.data;
    for (int i = 0; i < 100; i++) CHECK_STATUS(tl_vec_push(&v, &i), TL_OK);
    CHECK_EQ(kit_allocs(), 1);
    CHECK(v.data == data);
    tl_vec_free(&v);
}

/* reserve never shrinks and keeps the elements. */
CASE(reserve_keeps_elements_and_room)
{
    tl_vec v;
    CHECK_STATUS(tl_vec_init(&v, sizeof(int)), TL_OK);
    for (int i = 0; i < 3; i++) CHECK_STATUS(tl_vec_push(&v, &i), TL_OK);
    CHECK_STATUS(tl_vec_reserve(&v, 40), TL_OK);
    const tl_vec after = v;
    CHECK_STATUS(tl_vec_reserve(&v, 40), TL_OK);
    CHECK_STATUS(tl_vec_reserve(&v, 2), TL_OK);
    CHECK_STATUS(tl_vec_reserve(&v, 0), TL_OK);
    CHECK_BYTES(&v, &after, sizeof v);
    for (int i = 0; i < 3; i++) CHECK_EQ(*(int *)tl_vec_at(&v, (size_t)i), i);
    tl_vec_free(&v);
}

/* A byte count past size_t is TL_EINVAL; the array is unchanged, no hook asked. */
CASE(reserve_refuses_an_overflow)
{
    tl_vec v;
    CHECK_STATUS(tl_vec_init(&v, 16), TL_OK);
    const tl_vec before = v;
    CHECK_STATUS(tl_vec_reserve(&v, SIZE_MAX / 16 + 1), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_reserve");
    CHECK_STATUS(tl_vec_reserve(&v, SIZE_MAX), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_reserve");
    CHECK_BYTES(&v, &before, sizeof v);
    CHECK_EQ(kit_allocs(), 0);
}

/* The largest count that fits is not an overflow: the allocator answers. */
CASE(reserve_asks_for_what_fits)
{
    tl_vec v;
    CHECK_STATUS(tl_vec_init(&v, 16), TL_OK);
    kit_fail_at(0, 0);
    CHECK_STATUS(tl_vec_reserve(&v, SIZE_MAX / 16), TL_ENOMEM);
    CHECK_ERROR_FROM("tl_vec_reserve");
    CHECK(kit_failed());
}

/* A push that would double past size_t is TL_EINVAL; the array is unchanged. The
 * elements of such an array are never touched, so it may be made by hand. */
CASE(push_refuses_an_overflow)
{
    char x[2] = {0};
    tl_vec bytes = {x, SIZE_MAX / 2 / 2 + 1, SIZE_MAX / 2 / 2 + 1, 2};
    tl_vec count = {x, SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1, 1};
    const tl_vec bytes_before = bytes, count_before = count;
    CHECK_STATUS(tl_vec_push(&bytes, x), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_push");
    CHECK_STATUS(tl_vec_push(&count, x), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_push");
    CHECK_BYTES(&bytes, &bytes_before, sizeof bytes);
    CHECK_BYTES(&count, &count_before, sizeof count);
    CHECK_EQ(kit_allocs(), 0);
}

/* NULL arguments and an array never initialized are TL_EINVAL. */
CASE(calls_refuse_null)
{
    int x = 1;
    tl_vec v, zero = {0};
    CHECK_STATUS(tl_vec_init(&v, sizeof x), TL_OK);
    CHECK_STATUS(tl_vec_reserve(NULL, 1), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_reserve");
    CHECK_STATUS(tl_vec_reserve(&zero, 1), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_reserve");
    CHECK_STATUS(tl_vec_push(NULL, &x), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_push");
    CHECK_STATUS(tl_vec_push(&v, NULL), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_push");
    CHECK_STATUS(tl_vec_push(&zero, &x), TL_EINVAL);
    CHECK_ERROR_FROM("tl_vec_push");
    CHECK_EQ(v.len, 0);
    CHECK_EQ(kit_allocs(), 0);
}

/* at gives NULL with a message past the end, also where there is room. */
CASE(at_stops_at_the_end)
{
    int x = 7;
    tl_vec v;
    CHECK_STATUS(tl_vec_init(&v, sizeof x), TL_OK);
    CHECK(!tl_vec_at(&v, 0));
    CHECK_ERROR_FROM("tl_vec_at");
    CHECK_STATUS(tl_vec_reserve(&v, 4), TL_OK);
    CHECK_STATUS(tl_vec_push(&v, &x), TL_OK);
    CHECK(!tl_vec_at(&v, 1));
    CHECK_ERROR_FROM("tl_vec_at");
    CHECK(!tl_vec_at(&v, SIZE_MAX));
    CHECK_ERROR_FROM("tl_vec_at");
    CHECK(!tl_vec_at(NULL, 0));
    CHECK_ERROR_FROM("tl_vec_at");
    CHECK_EQ(*(int *)tl_vec_at(&v, 0), 7);
    CHECK_STR(tl_last_error(), "");
    tl_vec_free(&v);
}

/* A pushed element may be one of the array's own, also when the push grows. */
CASE(push_of_an_own_element)
{
    tl_vec v;
    CHECK_STATUS(tl_vec_init(&v, sizeof(int)), TL_OK);
    CHECK_STATUS(tl_vec_push(&v, &(int){42}), TL_OK);
    for (size_t i = 1; i < 40; i++) CHECK_STATUS(tl_vec_push(&v, tl_vec_at(&v, i - 1)), TL_OK);
    for (size_t i = 0; i < 40; i++) CHECK_EQ(*(int *)tl_vec_at(&v, i), 42);
    tl_vec_free(&v);
}

/* Lowering len drops elements from the end; the room is used again. */
CASE(len_may_be_lowered)
{
    tl_vec v;
    CHECK_STATUS(tl_vec_init(&v, sizeof(int)), TL_OK);
    for (int i = 0; i < 8; i++) CHECK_STATUS(tl_vec_push(&v, &i), TL_OK);
    size_t allocs = kit_allocs();
    v.len = 2;
    CHECK_STATUS(tl_vec_push(&v, &(int){99}), TL_OK);
    CHECK_EQ(*(int *)tl_vec_at(&v, 1), 1);
    CHECK_EQ(*(int *)tl_vec_at(&v, 2), 99);
    CHECK_EQ(kit_allocs(), allocs);
    tl_vec_free(&v);
}

/* free goes back to the state after init, elem kept; twice and on NULL is fine. */
CASE(free_goes_back_to_init)
{
    tl_vec v;
    CHECK_STATUS(tl_vec_init(&v, sizeof(int)), TL_OK);
    const tl_vec fresh = v;
    CHECK_STATUS(tl_vec_push(&v, &(int){1}), TL_OK);
    tl_vec_free(&v);
    CHECK_BYTES(&v, &fresh, sizeof v);
    CHECK_EQ(kit_live(), 0);
    tl_vec_free(&v);
    tl_vec_free(NULL);
    CHECK_STATUS(tl_vec_push(&v, &(int){2}), TL_OK);
    CHECK_EQ(*(int *)tl_vec_at(&v, 0), 2);
    tl_vec_free(&v);
}

/* Whichever allocation fails: TL_ENOMEM, the array unchanged, nothing leaks. */
CASE(every_allocation_may_fail)
{
    KIT_EACH_ALLOC_FAILURE(n) {
        tl_vec v;
        CHECK_STATUS(tl_vec_init(&v, sizeof(int)), TL_OK);
        int failed = 0;
        for (int i = 0; i < 20; i++) {
            const tl_vec before = v;
            tl_status status = i % 7 == 6 ? tl_vec_reserve(&v, v.len * 3) : TL_OK;
            if (status == TL_OK) status = tl_vec_push(&v, &i);
            if (status == TL_OK) continue;
            CHECK_STATUS(status, TL_ENOMEM);
            CHECK(strncmp(tl_last_error(), "tl_vec_", 7) == 0);
            CHECK_BYTES(&v, &before, sizeof v);
            for (size_t j = 0; j < v.len; j++) CHECK_EQ(*(int *)tl_vec_at(&v, j), j);
            failed = 1;
            break;
        }
        CHECK_EQ(failed, kit_failed());
        if (!failed) CHECK_EQ(v.len, 20);
        tl_vec_free(&v);
    }
}

CASES(init_is_empty, init_refuses, push_keeps_the_elements, growth_at_least_doubles, reserved_room_is_used,
      reserve_keeps_elements_and_room, reserve_refuses_an_overflow, reserve_asks_for_what_fits,
      push_refuses_an_overflow, calls_refuse_null, at_stops_at_the_end, push_of_an_own_element,
      len_may_be_lowered, free_goes_back_to_init, every_allocation_may_fail)
