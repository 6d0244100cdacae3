/* C[M,N] += A[M,K] B[K,N] in the program's own memory, or C = A B where `fresh`; B and C are
 * row-major, A has any steps from row to row (ar) and from column to column (ac). All sizes are
 * constants at every call, so that the loops below unroll into blocks of registers: ROWS rows of A
 * times VECTORS vectors of B, enough independent fused multiply-adds to hide their latency. */
#ifndef TZ_DOT_H
#define TZ_DOT_H

#if defined(__AVX512F__)
#define TZ_VECTOR_BYTES 64
#define TZ_ROWS 8
#elif defined(__AVX__)
#define TZ_VECTOR_BYTES 32
#define TZ_ROWS 4
#else
#define TZ_VECTOR_BYTES 16
#define TZ_ROWS 4
#endif
#define TZ_VECTORS 2

#define TZ_DOT(NAME, T)                                                                         \
    typedef T NAME##_vector __attribute__((vector_size(TZ_VECTOR_BYTES), aligned(sizeof(T)),    \
                                           may_alias));                                         \
    static inline __attribute__((always_inline, unused)) void NAME##_block(                     \
        const int fresh, const int rows, const int vectors, const int N, const int K,           \
        const int ar, const int ac, const T *A, const T *B, T *C)                               \
    {                                                                                           \
        enum { WIDTH = TZ_VECTOR_BYTES / sizeof(T) };                                           \
        NAME##_vector sum[TZ_ROWS][TZ_VECTORS];                                                 \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                  \
            _Pragma("GCC unroll 2") for (int v = 0; v < vectors; v++)                           \
                sum[r][v] = fresh ? (NAME##_vector){0}                                          \
                                  : *(const NAME##_vector *)(C + r * N + v * WIDTH);            \
        for (int k = 0; k < K; k++) {                                                           \
            NAME##_vector b[TZ_VECTORS];                                                        \
            _Pragma("GCC unroll 2") for (int v = 0; v < vectors; v++)                           \
                b[v] = *(const NAME##_vector *)(B + k * N + v * WIDTH);                         \
            _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                              \
                _Pragma("GCC unroll 2") for (int v = 0; v < vectors; v++)                       \
                    sum[r][v] += A[r * ar + k * ac] * b[v];                                     \
        }                                                                                       \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                  \
            _Pragma("GCC unroll 2") for (int v = 0; v < vectors; v++)                           \
                *(NAME##_vector *)(C + r * N + v * WIDTH) = sum[r][v];                          \
    }                                                                                           \
    static inline __attribute__((always_inline, unused)) void NAME(                             \
        const int fresh, const int M, const int N, const int K, const int ar, const int ac,     \
        const T *A, const T *B, T *C)                                                           \
    {                                                                                           \
        enum { WIDTH = TZ_VECTOR_BYTES / sizeof(T) };                                           \
        const int vectors = N % (WIDTH * TZ_VECTORS) == 0 ? TZ_VECTORS : 1;                     \
        const int rows = M % TZ_ROWS == 0 ? TZ_ROWS : M % 4 == 0 ? 4 : M % 2 == 0 ? 2 : 1;      \
        if (N % WIDTH) {                                                                        \
            for (int i = 0; fresh && i < M * N; i++)                                            \
                C[i] = 0;                                                                       \
            for (int i = 0; i < M; i++)                                                         \
                for (int k = 0; k < K; k++)                                                     \
                    for (int j = 0; j < N; j++)                                                 \
                        C[i * N + j] += A[i * ar + k * ac] * B[k * N + j];                      \
            return;                                                                             \
        }                                                                                       \
        for (int j = 0; j < N; j += vectors * WIDTH)                                            \
            for (int i = 0; i < M; i += rows)                                                   \
                NAME##_block(fresh, rows, vectors, N, K, ar, ac, A + i * ar, B + j,             \
                             C + i * N + j);                                                    \
    }

/* f16 to f32, and f32 rounded to f16 and back, for whole tiles: the machine has instructions for
 * this that gcc does not find in loops over elements. */
#if defined(__AVX512F__) && !defined(__clang__)
#define TZ_HALVES 16
#define TZ_WIDEN(h) __builtin_ia32_vcvtph2ps512_mask((h), (tz_singles){0}, 0xffff, 4)
#define TZ_NARROW(f) __builtin_ia32_vcvtps2ph512_mask((f), 0 /* nearest */, (tz_halves){0}, 0xffff)
#elif defined(__F16C__) && !defined(__clang__)
#define TZ_HALVES 8
#define TZ_WIDEN(h) __builtin_ia32_vcvtph2ps256(h)
#define TZ_NARROW(f) __builtin_ia32_vcvtps2ph256((f), 0 /* nearest */)
#endif
#ifdef TZ_HALVES
typedef short tz_halves __attribute__((vector_size(2 * TZ_HALVES), aligned(2), may_alias));
typedef float tz_singles __attribute__((vector_size(4 * TZ_HALVES), aligned(4), may_alias));
#endif

static inline __attribute__((unused)) void tz_widen_f16(const int count, const uint16_t *from,
                                                        float *to)
{
    int k = 0;
#ifdef TZ_HALVES
    for (; k + TZ_HALVES <= count; k += TZ_HALVES)
        *(tz_singles *)(to + k) = TZ_WIDEN(*(const tz_halves *)(from + k));
#endif
    for (; k < count; k++)
        to[k] = tz_f16_to_f32(from[k]);
}

static inline __attribute__((unused)) void tz_round_all_f16(const int count, const float *from,
                                                            float *to)
{
    int k = 0;
#ifdef TZ_HALVES
    for (; k + TZ_HALVES <= count; k += TZ_HALVES)
        *(tz_singles *)(to + k) = TZ_WIDEN(TZ_NARROW(*(const tz_singles *)(from + k)));
#endif
    for (; k < count; k++)
        to[k] = tz_round_f16(from[k]);
}

TZ_DOT(tz_dot_f32, float)
TZ_DOT(tz_dot_f64, double)
TZ_DOT(tz_dot_i32, uint32_t)

#endif
