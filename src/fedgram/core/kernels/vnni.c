/* Exact products of int8 matrices with AVX-512 VNNI: int8 in, 32-bit sums within a block of the
 * inner dimension, int64 totals.
 *
 * The instruction vpdpbusd multiplies four unsigned bytes by four signed bytes and adds the products
 * to a 32-bit lane, without saturation. So one operand is shifted by 128 to unsigned bytes, and the
 * shift is taken back with the sums of the other operand:
 *
 *     sum_k a[k] b[k] = sum_k a[k] (b[k] + 128) - 128 sum_k a[k].
 *
 * All of this is arithmetic modulo 2^32, in any order. So the result is right whenever the true sum
 * fits in 32 bits, whatever the partial sums are: for up to 131,071 products of any two int8
 * numbers, since 131,071 * 128 * 128 < 2^31. The caller cuts longer sums into blocks.
 *
 * In a packed operand four consecutive indices k (a quad) of 16 columns (a group) are 16 times 4
 * bytes: one 64-byte register. The order is: slices of DEPTH quads, groups, quads of the slice. So
 * what is multiplied at a time is contiguous. Both operands have this layout; the shift is done in
 * registers. Columns are padded with zeros to a multiple of PANEL, k to a multiple of four.
 */

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FAST __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define EXPORT __attribute__((visibility("default")))

enum {
    GROUP = 16,         /* columns in one register of quads */
    ROWS = 8,           /* a register tile is ROWS by PANEL: 24 registers of sums */
    PANEL = 3 * GROUP,
    BLOCK = 6 * PANEL,  /* a cache tile is BLOCK by BLOCK */
    DEPTH = 128,        /* quads at a time: one panel of them fits in the first cache */
    TILE = ROWS * PANEL,
};

typedef struct {
    const int8_t *quads;  /* the packed operand */
    const int32_t *sums;  /* the sum of each column */
    int64_t columns;      /* without padding */
} operand;

/* What happens to finished sums: exactly one of the three outputs is set. */
typedef struct {
    int64_t *triangle;    /* add to the upper triangle, row by row; only i <= j */
    int32_t *matrix;      /* write, in C order */
    int8_t *looked_up;    /* write table[sum + middle], the index clipped to the table */
    int64_t stride;       /* from row to row of matrix or looked_up */
    const int8_t *table;
    int64_t entries;
} output;

EXPORT int fedgram_supported(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Return the place of a quad of a group; `groups` is the number of groups. */
static inline int64_t place(int64_t quad, int64_t group, int64_t groups, int64_t quads)
{
    const int64_t slice = quad / DEPTH * DEPTH;
    return 64 * (slice * groups + group * least(DEPTH, quads - slice) + quad - slice);
}

static inline int64_t groups_of(int64_t columns) { return (columns + PANEL - 1) / PANEL * 3; }

/* Pack groups `first` to `last` of the columns of x, (inner, columns) with rows `stride` apart. */
EXPORT FAST void fedgram_pack_columns(const int8_t *x, int64_t inner, int64_t columns,
                                      int64_t stride, int8_t *out, int32_t *sums,
                                      int64_t first, int64_t last)
{
    const int64_t quads = (inner + 3) / 4, groups = groups_of(columns);
    const __m512i ones = _mm512_set1_epi8(1);
    memset(sums + first * GROUP, 0, (size_t)(last - first) * GROUP * sizeof *sums);
    for (int64_t start = 0; start < quads; start += 16)  /* so that rows stay in the cache */
        for (int64_t g = first; g < last; g++) {
            const int64_t width = most(0, least(GROUP, columns - g * GROUP));
            const __mmask16 held = (__mmask16)((1u << width) - 1);
            __m512i sum = _mm512_loadu_si512(sums + g * GROUP);
            for (int64_t q = start; q < least(quads, start + 16); q++) {
                __m128i row[4];
                for (int r = 0; r < 4; r++)
                    row[r] = 4 * q + r < inner
                        ? _mm_maskz_loadu_epi8(held, x + (4 * q + r) * stride + g * GROUP)
                        : _mm_setzero_si128();
                const __m128i low01 = _mm_unpacklo_epi8(row[0], row[1]);
                const __m128i low23 = _mm_unpacklo_epi8(row[2], row[3]);
                const __m128i high01 = _mm_unpackhi_epi8(row[0], row[1]);
                const __m128i high23 = _mm_unpackhi_epi8(row[2], row[3]);
                __m512i four = _mm512_castsi128_si512(_mm_unpacklo_epi16(low01, low23));
                four = _mm512_inserti32x4(four, _mm_unpackhi_epi16(low01, low23), 1);
                four = _mm512_inserti32x4(four, _mm_unpacklo_epi16(high01, high23), 2);
                four = _mm512_inserti32x4(four, _mm_unpackhi_epi16(high01, high23), 3);
                sum = _mm512_dpbusd_epi32(sum, ones, four);
                _mm512_storeu_si512(out + place(q, g, groups, quads), four);
            }
            _mm512_storeu_si512(sums + g * GROUP, sum);
        }
}

/* The same for a matrix that is stored transposed: x is (columns, inner). */
EXPORT FAST void fedgram_pack_rows(const int8_t *x, int64_t inner, int64_t columns,
                                   int64_t stride, int8_t *out, int32_t *sums,
                                   int64_t first, int64_t last)
{
    const int64_t quads = (inner + 3) / 4, whole = inner / 4, groups = groups_of(columns);
    const __m512i ones = _mm512_set1_epi8(1);
    for (int64_t g = first; g < last; g++) {
        const int64_t held = most(0, least(GROUP, columns - g * GROUP));
        __m512i sum = _mm512_setzero_si512();
        for (int64_t q = 0; q < quads; q++) {
            int32_t four[GROUP] = {0};
            const size_t bytes = q < whole ? 4 : (size_t)(inner - 4 * whole);
            for (int64_t c = 0; c < held; c++)
                memcpy(four + c, x + (g * GROUP + c) * stride + 4 * q, bytes);
            const __m512i packed = _mm512_loadu_si512(four);
            sum = _mm512_dpbusd_epi32(sum, ones, packed);
            _mm512_storeu_si512(out + place(q, g, groups, quads), packed);
        }
        _mm512_storeu_si512(sums + g * GROUP, sum);
    }
}

/* As assembly, because compilers copy the sum of the intrinsic from register to register. */
#define ADD(sum, right, left) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(right), "v"(left))

/* The 24 sums of a register tile have names, not indices: compilers keep an array in memory. */
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define LOAD(i) \
    __m512i first##i = _mm512_load_si512(sums + i * PANEL); \
    __m512i second##i = _mm512_load_si512(sums + i * PANEL + GROUP); \
    __m512i third##i = _mm512_load_si512(sums + i * PANEL + 2 * GROUP);
#define MULTIPLY(i) { \
    int32_t four; \
    memcpy(&four, a + 4 * i, 4); \
    const __m512i left = _mm512_set1_epi32(four); \
    ADD(first##i, right0, left); \
    ADD(second##i, right1, left); \
    ADD(third##i, right2, left); }
#define STORE(i) \
    _mm512_store_si512(sums + i * PANEL, first##i); \
    _mm512_store_si512(sums + i * PANEL + GROUP, second##i); \
    _mm512_store_si512(sums + i * PANEL + 2 * GROUP, third##i);

/* sums (ROWS, PANEL) += a' (b + 128) over `quads` quads; b has its groups `apart` bytes apart. */
static FAST void multiply(const int8_t *a, const int8_t *b, int64_t apart, int64_t quads,
                          int32_t *sums)
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);  /* x ^ 0x80 is x + 128, unsigned */
    EACH_ROW(LOAD)
    for (int64_t q = 0; q < quads; q++, a += 64, b += 64) {
        const __m512i right0 = _mm512_xor_si512(flip, _mm512_load_si512(b));
        const __m512i right1 = _mm512_xor_si512(flip, _mm512_load_si512(b + apart));
        const __m512i right2 = _mm512_xor_si512(flip, _mm512_load_si512(b + 2 * apart));
        _mm_prefetch((const char *)a + apart, _MM_HINT_T0);  /* the next group, the next panel */
        _mm_prefetch((const char *)b + 3 * apart, _MM_HINT_T1);
        EACH_ROW(MULTIPLY)
    }
    EACH_ROW(STORE)
}

/* Write one finished register tile, whose first entry is (row, column). */
static FAST void finish(const output *out, const int32_t *tile, const operand *a,
                        const operand *b, int64_t row, int64_t column)
{
    const int64_t stop = least(PANEL, b->columns - column);
    for (int64_t i = row; i < least(row + ROWS, a->columns); i++, tile += PANEL) {
        const uint32_t shift = 128u * (uint32_t)a->sums[i];
        const int64_t begin = out->triangle ? most(0, i - column) : 0;
        if (out->triangle) {
            int64_t *to = out->triangle + i * b->columns - i * (i + 1) / 2 + column;
            for (int64_t j = begin; j < stop; j++)
                to[j] += (int32_t)((uint32_t)tile[j] - shift);
        } else if (out->matrix) {
            int32_t *to = out->matrix + i * out->stride + column;
            for (int64_t j = 0; j < stop; j++)
                to[j] = (int32_t)((uint32_t)tile[j] - shift);
        } else {
            int8_t *to = out->looked_up + i * out->stride + column;
            const int32_t middle = (int32_t)(out->entries / 2), last = (int32_t)out->entries - 1;
            for (int64_t j = 0; j < stop; j++) {
                const int32_t sum = (int32_t)((uint32_t)tile[j] - shift);
                const int32_t place = sum < -middle ? 0 : sum > last - middle ? last : sum + middle;
                to[j] = out->table[place];
            }
        }
    }
}

/* Compute cache tile (rows from `row`, columns from `column`) of a' b. */
static FAST void cache_tile(const operand *a, const operand *b, int64_t quads, const output *out,
                            int64_t row, int64_t column, int32_t *room)
{
    const int64_t row_stop = least(row + BLOCK, a->columns);
    const int64_t column_stop = least(column + BLOCK, b->columns);
    const int64_t left = groups_of(a->columns), right = groups_of(b->columns);
    memset(room, 0, BLOCK * BLOCK * sizeof *room);
    for (int64_t q = 0; q < quads; q += DEPTH) {
        const int64_t depth = least(DEPTH, quads - q), apart = 64 * depth;
        int32_t *tile = room;
        for (int64_t j = column; j < column_stop; j += PANEL)
            for (int64_t i = row; i < row_stop; i += ROWS, tile += TILE)
                if (!out->triangle || i < j + PANEL)
                    multiply(a->quads + place(q, i / GROUP, left, quads) + i % GROUP * 4,
                             b->quads + place(q, j / GROUP, right, quads), apart, depth, tile);
    }
    for (int64_t j = column; j < column_stop; j += PANEL)
        for (int64_t i = row; i < row_stop; i += ROWS, room += TILE)
            if (!out->triangle || i < j + PANEL)
                finish(out, room, a, b, i, j);
}

/* Compute the cache tiles number `first` to `last` of a' b; 0 if there is no memory.
 * Tiles are numbered row by row; those below the diagonal of a triangle are empty. */
EXPORT FAST int fedgram_multiply(const operand *a, const operand *b, int64_t inner,
                                 const output *out, int64_t first, int64_t last)
{
    const int64_t across = (b->columns + BLOCK - 1) / BLOCK;
    int32_t *room = aligned_alloc(64, BLOCK * BLOCK * sizeof *room);
    if (!room)
        return 0;
    for (int64_t t = first; t < last; t++)
        if (!out->triangle || t / across <= t % across)
            cache_tile(a, b, (inner + 3) / 4, out, t / across * BLOCK, t % across * BLOCK, room);
    free(room);
    return 1;
}

/* totals (classes, columns) += the rows of x, each to the row of its class code. */
EXPORT FAST void fedgram_class_sums(const int8_t *x, const int64_t *codes, int64_t rows,
                                    int64_t columns, int64_t stride, int64_t *totals)
{
    for (int64_t start = 0; start < columns; start += 512) {  /* so that totals stay in the cache */
        const int64_t stop = least(columns, start + 512);
        for (int64_t i = 0; i < rows; i++) {
            int64_t *to = totals + codes[i] * columns;
            for (int64_t j = start; j < stop; j++)
                to[j] += x[i * stride + j];
        }
    }
}

/* Write the symmetric matrix of a packed upper triangle as float64. */
#define SQUARE 32
EXPORT FAST void fedgram_unpack(const int64_t *packed, int64_t width, double *out)
{
    for (int64_t i = 0; i < width; i++) {
        const int64_t *from = packed + i * width - i * (i + 1) / 2;
        for (int64_t j = i; j < width; j++)
            out[i * width + j] = (double)from[j];
    }
    for (int64_t row = 0; row < width; row += SQUARE)  /* mirror, square by square */
        for (int64_t column = 0; column <= row; column += SQUARE)
            for (int64_t i = row; i < least(width, row + SQUARE); i++)
                for (int64_t j = column; j < least(i, column + SQUARE); j++)
                    out[i * width + j] = out[j * width + i];
}
