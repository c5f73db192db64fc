/* One pass over many tensors: norm, largest element, and counts of what float16 would lose. Plain loops that a
 * compiler turns into vector instructions; native.py calls it, cpu.py gives the same numbers without it. */

#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* PORTABLE: for a compiler that does not know one processor from another. SOURCE: checksum of this file. */

#define INLINE static inline __attribute__((always_inline))

enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64 };
enum { NORM, ABSMAX, NANS, INFS, ZEROS, SUBNORMALS, SMALL, GRID, COLUMNS };

/* Elements whose counts are kept in 32 bits and that are read again, out of the cache, where one is not finite.
 * A piece is what is widened to float32 at a time; 16-bit loads in the loops below would not become vectors. */
enum { SPAN = 16384, PIECE = 2048 };

/* Bits of non-negative float32 numbers; as integers they are in the same order. */
enum { INFINITE = 0x7f800000, NORMAL_HALF = 0x38800000 /* 2^-14 */, GRID_LIMIT = 0x3e000000 /* 2^-3 */ };
#define INFINITE64 0x7ff0000000000000
#define NORMAL_HALF64 0x3f10000000000000
#define GRID_LIMIT64 0x3fc0000000000000

/* What is added to a small number to round it to a multiple of 2^-24: the last place of a sum this large. */
#define ROUNDER 0.75f
#define ROUNDER64 0x1.8p28

/* A sum of squares below it may have lost squares that are subnormal in float64. */
#define TINY 0x1p-900

/* Tensors may lie at any address. */
typedef uint16_t bits16 __attribute__((aligned(1), may_alias));
typedef uint32_t bits32 __attribute__((aligned(1), may_alias));
typedef uint64_t bits64 __attribute__((aligned(1), may_alias));

typedef struct {
    double squares, absmax;
    int64_t nans, infs, zeros, below, small, grid; /* below, small, grid: zeros are counted too */
} found;

INLINE float number(int32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE double number64(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A float16 without its sign as the float32 of the same value; exact, and without an operation on subnormals. */
INLINE int32_t widened(int32_t half)
{
    float subnormal = (float)half * 0x1p-24f;
    int32_t small, is_small = -(half < 0x400), is_special = -(half >= 0x7c00);
    int32_t normal = (half << 13) + (112 << 23) + (is_special & (112 << 23));
    memcpy(&small, &subnormal, sizeof small);
    return (small & is_small) | (normal & ~is_small); /* a condition would keep the loop from becoming vectors */
}

INLINE void widen(const bits16 *elements, int64_t count, int kind, uint32_t *wide)
{
    if (kind == FLOAT16)
        for (int64_t at = 0; at < count; at++)
            wide[at] = (uint32_t)widened(elements[at] & 0x7fff);
    else
        for (int64_t at = 0; at < count; at++)
            wide[at] = (uint32_t)elements[at] << 16;
}

INLINE int32_t magnitude(const bits32 *elements, int64_t at)
{
    return (int32_t)(elements[at] & 0x7fffffff);
}

INLINE int64_t magnitude64(const bits64 *elements, int64_t at)
{
    return (int64_t)(elements[at] & 0x7fffffffffffffff);
}

INLINE void nonfinite(const bits32 *elements, int64_t count, found *sums)
{
    int32_t nans = 0, infs = 0, top = 0;
#pragma omp simd reduction(+ : nans, infs) reduction(max : top)
    for (int64_t at = 0; at < count; at++) {
        int32_t bits = magnitude(elements, at);
        int32_t finite = bits < INFINITE ? bits : 0;
        nans += bits > INFINITE;
        infs += bits == INFINITE;
        top = finite > top ? finite : top;
    }
    sums->nans += nans;
    sums->infs += infs;
    sums->absmax = fmax(sums->absmax, number(top));
}

INLINE void span(const bits32 *elements, int64_t count, found *sums)
{
    double squares = 0;
    int32_t top = 0, zeros = 0, below = 0, small = 0, grid = 0;
#pragma omp simd reduction(+ : squares, zeros, below, small, grid) reduction(max : top)
    for (int64_t at = 0; at < count; at++) {
        int32_t bits = magnitude(elements, at), rounded;
        float value = number(bits), nearest = (value + ROUNDER) - ROUNDER;
        memcpy(&rounded, &nearest, sizeof rounded);
        squares += (double)value * (double)value;
        top = bits > top ? bits : top;
        zeros += bits == 0;
        below += bits < NORMAL_HALF;
        small += bits < GRID_LIMIT;
        grid += (bits < GRID_LIMIT) & (bits == rounded);
    }
    sums->squares += squares;
    sums->zeros += zeros;
    sums->below += below;
    sums->small += small;
    sums->grid += grid;
    if (top >= INFINITE)
        nonfinite(elements, count, sums);
    else
        sums->absmax = fmax(sums->absmax, number(top));
}

INLINE void span64(const bits64 *elements, int64_t count, found *sums)
{
    double squares = 0;
    int64_t top = 0, nans = 0, infs = 0, zeros = 0, below = 0, small = 0, grid = 0;
#pragma omp simd reduction(+ : squares, nans, infs, zeros, below, small, grid) reduction(max : top)
    for (int64_t at = 0; at < count; at++) {
        int64_t bits = magnitude64(elements, at), finite = bits < INFINITE64 ? bits : 0, rounded;
        double value = number64(bits), nearest = (value + ROUNDER64) - ROUNDER64;
        memcpy(&rounded, &nearest, sizeof rounded);
        squares += value * value;
        top = finite > top ? finite : top;
        nans += bits > INFINITE64;
        infs += bits == INFINITE64;
        zeros += bits == 0;
        below += bits < NORMAL_HALF64;
        small += bits < GRID_LIMIT64;
        grid += (bits < GRID_LIMIT64) & (bits == rounded);
    }
    sums->squares += squares;
    sums->nans += nans;
    sums->infs += infs;
    sums->zeros += zeros;
    sums->below += below;
    sums->small += small;
    sums->grid += grid;
    sums->absmax = fmax(sums->absmax, number64(top));
}

INLINE double squares_of(const bits32 *elements, int64_t count)
{
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t at = 0; at < count; at++) {
        double value = number(magnitude(elements, at));
        squares += value * value;
    }
    return squares;
}

INLINE double squares_of64(const bits64 *elements, int64_t count)
{
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t at = 0; at < count; at++) {
        double value = number64(magnitude64(elements, at));
        squares += value * value;
    }
    return squares;
}

/* The norm of float64 elements whose squares leave float64, or nearly; rare, so it reads again. */
static double scaled_norm(const bits64 *elements, int64_t count)
{
    double top = 0, squares = 0;
    for (int64_t at = 0; at < count; at++)
        top = fmax(top, number64(magnitude64(elements, at)));
    if (top == 0 || isinf(top))
        return top;
    for (int64_t at = 0; at < count; at++) {
        double share = number64(magnitude64(elements, at)) / top;
        squares += share * share;
    }
    return top * sqrt(squares);
}

static double norm_of(double squares, const void *elements, int64_t count, int kind)
{
    if (kind == FLOAT64 && (isinf(squares) || squares < TINY))
        return scaled_norm(elements, count);
    return sqrt(squares);
}

INLINE void one(const void *elements, int64_t count, int kind, double *out)
{
    found sums = {0};
    uint32_t wide[PIECE];
    int64_t step = kind == FLOAT32 || kind == FLOAT64 ? SPAN : PIECE;
    for (int64_t from = 0; from < count; from += step) {
        int64_t length = count - from < step ? count - from : step;
        if (kind == FLOAT32)
            span((const bits32 *)elements + from, length, &sums);
        else if (kind == FLOAT64)
            span64((const bits64 *)elements + from, length, &sums);
        else {
            widen((const bits16 *)elements + from, length, kind, wide);
            span(wide, length, &sums);
        }
    }
    out[NORM] = norm_of(sums.squares, elements, count, kind);
    out[ABSMAX] = sums.absmax;
    out[NANS] = (double)sums.nans;
    out[INFS] = (double)sums.infs;
    out[ZEROS] = (double)sums.zeros;
    out[SUBNORMALS] = (double)(sums.below - sums.zeros);
    out[SMALL] = (double)(sums.small - sums.zeros);
    out[GRID] = (double)(sums.grid - sums.zeros);
}

INLINE void one_norm(const void *elements, int64_t count, int kind, double *out)
{
    double squares = 0;
    uint32_t wide[PIECE];
    if (kind == FLOAT32)
        squares = squares_of(elements, count);
    else if (kind == FLOAT64)
        squares = squares_of64(elements, count);
    else
        for (int64_t from = 0; from < count; from += PIECE) {
            int64_t length = count - from < PIECE ? count - from : PIECE;
            widen((const bits16 *)elements + from, length, kind, wide);
            squares += squares_of(wide, length);
        }
    *out = norm_of(squares, elements, count, kind);
}

/* `kind` is a constant in each call, so each gets loops of its own. */
#define EACH(call, width)                                                                                     \
    for (int64_t at = 0; at < tensors; at++) {                                                                \
        const void *elements = (const void *)(uintptr_t)pointers[at];                                         \
        double *numbers = out + (width) * at;                                                                 \
        switch (kinds[at]) {                                                                                  \
        case FLOAT32: call(elements, counts[at], FLOAT32, numbers); break;                                    \
        case BFLOAT16: call(elements, counts[at], BFLOAT16, numbers); break;                                  \
        case FLOAT16: call(elements, counts[at], FLOAT16, numbers); break;                                    \
        default: call(elements, counts[at], FLOAT64, numbers);                                                \
        }                                                                                                     \
    }

#define ARGUMENTS int64_t tensors, const uint64_t *pointers, const int64_t *counts, const uint8_t *kinds, double *out

#define FOR_MACHINE(name, machine)                                                                            \
    machine static void read_##name(ARGUMENTS) { EACH(one, COLUMNS) }                                         \
    machine static void norms_##name(ARGUMENTS) { EACH(one_norm, 1) }

FOR_MACHINE(any, )
#if defined(__x86_64__) && !defined(PORTABLE)
FOR_MACHINE(avx2, __attribute__((target("avx2,fma"))))
#if defined(__clang__)
#define WHOLE_VECTORS ""
#else
#define WHOLE_VECTORS ",prefer-vector-width=512" /* gcc would use half of each */
#endif
FOR_MACHINE(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma" WHOLE_VECTORS))))
#endif

typedef void (*reader)(ARGUMENTS);

static const reader READ[] = {
    read_any,
#if defined(__x86_64__) && !defined(PORTABLE)
    read_avx2, read_avx512,
#endif
};

static const reader NORMS[] = {
    norms_any,
#if defined(__x86_64__) && !defined(PORTABLE)
    norms_avx2, norms_avx512,
#endif
};

/* Changed together with native.py's, when a function here takes or returns something else. */
int ammeter_version(void) { return 1; }

/* Checksum of this file as it was compiled. */
uint32_t ammeter_source(void) { return SOURCE; }

/* The best level that was compiled: 0 any, 1 AVX2, 2 AVX-512. Which the processor knows is the caller's to say. */
int ammeter_level(void) { return (int)(sizeof READ / sizeof *READ) - 1; }

/* The program may have asked for flushed subnormals or for traps: neither may show here, and no flag of ours there. */
static int in_plain_arithmetic(reader call, ARGUMENTS)
{
    fenv_t theirs;
    for (int64_t at = 0; at < tensors; at++)
        if (counts[at] && pointers[at] < 65536)
            return 1; /* memory that was given back: nothing may be read */
    fegetenv(&theirs);
    fesetenv(FE_DFL_ENV);
    call(tensors, pointers, counts, kinds, out);
    fesetenv(&theirs);
    return 0;
}

/* out: double[tensors][COLUMNS]. Returns 0, or 1 and nothing read where a tensor has no memory. */
int ammeter_read(int level, ARGUMENTS)
{
    return in_plain_arithmetic(READ[level], tensors, pointers, counts, kinds, out);
}

/* out: double[tensors]. Only the norm; it is not finite exactly where an element is not. */
int ammeter_norms(int level, ARGUMENTS)
{
    return in_plain_arithmetic(NORMS[level], tensors, pointers, counts, kinds, out);
}
