// Products of matrices whose smaller sides are some dozens of numbers, as the maps of a small network are: there a
// library of linear algebra spends as long on its calls as on its sums, and what follows a product has to read it
// from far away.
//
// All arrays are float32, row by row; the columns of b and c are whole vectors.

#pragma once

#include <cstdint>

#include "vectors.h"

namespace {

// c[j] = start + sum_k a(j, k) b[k] for J rows and V vectors of columns; a(j, k) lies at a + j rows + k columns.
// The start is c itself, a row `bias`, or 0.
enum class Start { zero, bias, itself };

template <int J, int V, Start S>
inline void tile(int64_t inner, const float* a, int64_t rows, int64_t columns, const float* b, int64_t b_step,
                 const float* bias, float* c, int64_t c_step) {
    Vector sum[J][V];
    for (int j = 0; j < J; j++)
        for (int v = 0; v < V; v++)
            sum[j][v] = S == Start::zero   ? Vector{}
                        : S == Start::bias ? load(bias + v * LANES)
                                           : load(c + j * c_step + v * LANES);
    for (int64_t k = 0; k < inner; k++) {
        Vector x[V];
        for (int v = 0; v < V; v++) x[v] = load(b + k * b_step + v * LANES);
        for (int j = 0; j < J; j++) {
            const float factor = a[j * rows + k * columns];
            for (int v = 0; v < V; v++) sum[j][v] += factor * x[v];
        }
    }
    for (int j = 0; j < J; j++)
        for (int v = 0; v < V; v++) store(c + j * c_step + v * LANES, sum[j][v]);
}

// All rows of V vectors of columns: J at a time, then one by one.
template <int J, int V, Start S>
inline void strip(int64_t count, int64_t inner, const float* a, int64_t rows, int64_t columns, const float* b,
                  int64_t b_step, const float* bias, float* c, int64_t c_step) {
    int64_t j = 0;
    for (; j + J <= count; j += J)
        tile<J, V, S>(inner, a + j * rows, rows, columns, b, b_step, bias, c + j * c_step, c_step);
    for (; j < count; j++) tile<1, V, S>(inner, a + j * rows, rows, columns, b, b_step, bias, c + j * c_step, c_step);
}

template <Start S>
inline void product(int64_t count, int64_t inner, int64_t width, const float* a, int64_t rows, int64_t columns,
                    const float* b, int64_t b_step, const float* bias, float* c, int64_t c_step) {
    int64_t at = 0;
    // 24 sums, their 4 factors and a spare fill the 32 registers of AVX-512.
    for (; at + 4 * LANES <= width; at += 4 * LANES)
        strip<6, 4, S>(count, inner, a, rows, columns, b + at, b_step, bias ? bias + at : bias, c + at,
                        c_step);
    for (; at + 2 * LANES <= width; at += 2 * LANES)
        strip<12, 2, S>(count, inner, a, rows, columns, b + at, b_step, bias ? bias + at : bias, c + at,
                        c_step);
    for (; at < width; at += LANES)
        strip<16, 1, S>(count, inner, a, rows, columns, b + at, b_step, bias ? bias + at : bias, c + at,
                        c_step);
}

// c (count, width) = a (count, inner) b (inner, width), plus a bias unless it is null.
inline void multiply(int64_t count, int64_t inner, int64_t width, const float* a, const float* b, const float* bias,
                     float* c) {
    if (bias)
        product<Start::bias>(count, inner, width, a, inner, 1, b, width, bias, c, width);
    else
        product<Start::zero>(count, inner, width, a, inner, 1, b, width, nullptr, c, width);
}

// c (high, width) += a^T b of a (count, high) and b (count, width).
inline void add_outer(int64_t count, int64_t high, int64_t width, const float* a, const float* b, float* c) {
    product<Start::itself>(high, count, width, a, 1, high, b, width, nullptr, c, width);
}

// sums (width) += the rows of a (count, width).
inline void add_rows(int64_t count, int64_t width, const float* a, float* sums) {
    for (int64_t at = 0; at < width; at += LANES) {
        Vector sum = load(sums + at);
        for (int64_t row = 0; row < count; row++) sum += load(a + row * width + at);
        store(sums + at, sum);
    }
}

// b (width, height) from a (height, width), both multiples of 16.
inline void transposed(int64_t height, int64_t width, const float* a, float* b) {
    for (int64_t i = 0; i < height; i += LANES)
        for (int64_t j = 0; j < width; j += LANES) {
            Vector square[LANES];
            for (int r = 0; r < LANES; r++) square[r] = load(a + (i + r) * width + j);
            transpose(square);
            for (int r = 0; r < LANES; r++) store(b + (j + r) * height + i, square[r]);
        }
}

// Rows that are worked on at once: what a sublayer makes of them stays in the nearest cache, and their number is a
// multiple of every strip's.
constexpr int64_t ROWS = 48;

}  // namespace
