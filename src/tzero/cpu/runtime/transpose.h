/* Transposes of tiles in the program's own memory. */
#ifndef TZ_TRANSPOSE_H
#define TZ_TRANSPOSE_H

/* to[columns,rows] = from[rows,columns]^T. */
#define TZ_TRANSPOSE(NAME, T)                                                                   \
    static inline __attribute__((always_inline, unused)) void NAME(                             \
        const int rows, const int columns, const T *from, T *to)                                \
    {                                                                                           \
        for (int j = 0; j < columns; j++)                                                       \
            for (int i = 0; i < rows; i++)                                                      \
                to[j * rows + i] = from[i * columns + j];                                       \
    }

TZ_TRANSPOSE(tz_transpose_f64, double)
TZ_TRANSPOSE(tz_transpose_i32, int32_t)
TZ_TRANSPOSE(tz_transpose_small_f32, float)

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TZ_SHUFFLES 1
#endif
#endif

#ifdef TZ_SHUFFLES
/* Sixteen rows of sixteen in registers. In each of four rounds, rows that are `S` apart exchange
 * the elements whose column has the bit `S` the other way. */
typedef float tz_row __attribute__((vector_size(64), aligned(4), may_alias));
#define TZ_LOW(j, S) ((j) & (S) ? (j) - (S) + 16 : (j))
#define TZ_HIGH(j, S) ((j) & (S) ? (j) + 16 : (j) + (S))
#define TZ_ALL(F, S)                                                                            \
    F(0, S), F(1, S), F(2, S), F(3, S), F(4, S), F(5, S), F(6, S), F(7, S), F(8, S), F(9, S),   \
        F(10, S), F(11, S), F(12, S), F(13, S), F(14, S), F(15, S)
#define TZ_ROUND(S)                                                                             \
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) if (!(i & (S)))                       \
    {                                                                                           \
        const tz_row a = row[i], b = row[i + (S)];                                              \
        row[i] = __builtin_shufflevector(a, b, TZ_ALL(TZ_LOW, S));                              \
        row[i + (S)] = __builtin_shufflevector(a, b, TZ_ALL(TZ_HIGH, S));                       \
    }

static inline __attribute__((unused)) void tz_transpose_f32(const int rows, const int columns,
                                                            const float *from, float *to)
{
    if (rows % 16 || columns % 16) {
        tz_transpose_small_f32(rows, columns, from, to);
        return;
    }
    for (int i0 = 0; i0 < rows; i0 += 16)
        for (int j0 = 0; j0 < columns; j0 += 16) {
            tz_row row[16];
            _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++)
                row[i] = *(const tz_row *)(from + (i0 + i) * columns + j0);
            TZ_ROUND(8)
            TZ_ROUND(4)
            TZ_ROUND(2)
            TZ_ROUND(1)
            _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++)
                *(tz_row *)(to + (j0 + j) * rows + i0) = row[j];
        }
}
#else
#define tz_transpose_f32 tz_transpose_small_f32
#endif

#endif
