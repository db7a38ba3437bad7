// The norm of one row, and sums over the lanes of many vectors.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace {

// Lane i of the result is total(v[i]); v has 16 vectors.
inline Vector sixteen_totals(const Vector* v) {
#if defined(__clang__) || __GNUC__ >= 12
    // Each step halves the lanes of a sum and doubles the sums of a vector.
    Vector a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = __builtin_shufflevector(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               __builtin_shufflevector(v[i], v[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int i = 0; i < 4; i++)
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int i = 0; i < 2; i++)
        c[i] = __builtin_shufflevector(b[i], b[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               __builtin_shufflevector(b[i], b[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    return __builtin_shufflevector(c[0], c[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           __builtin_shufflevector(c[0], c[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
#else
    float sums[LANES];
    for (int i = 0; i < LANES; i++) sums[i] = total(v[i]);
    return load(sums);
#endif
}

// How many floats `totals` writes for K sums.
constexpr int64_t padded(int64_t k) { return (k + LANES - 1) / LANES * LANES; }

// The totals of K vectors, in their order.
template <int K>
inline void totals(const Vector* v, float* sums) {
    for (int start = 0; start < K; start += LANES) {
        if (K - start < 3) {
            for (int i = start; i < K; i++) sums[i] = total(v[i]);
            continue;
        }
        Vector group[LANES] = {};
        for (int i = start; i < std::min(K, start + LANES); i++) group[i - start] = v[i];
        store(sums + start, sixteen_totals(group));
    }
}

// LayerNorm, or RMSNorm where not centred. The bias may be left out; without a gain there is no norm at all. Where
// `fixed` is not below 0 it is what every row is multiplied by, not one over the row's own root mean square.
struct Norm {
    const float *gain, *bias;
    int centred;
    float eps;
    float fixed = -1.0f;
};

// z = N(u) of one row; keeps its mean and what it was multiplied by in `kept`.
inline void norm_row(const Norm& norm, int64_t d, const float* u, float* kept, float* z) {
    if (!norm.gain) {
        std::memcpy(z, u, sizeof(float) * d);
        return;
    }
    float mean = 0.0f;
    if (norm.centred) {
        Vector sum = {};
        for (int64_t at = 0; at < d; at += LANES) sum += load(u + at);
        mean = total(sum) / d;
    }
    float scale = norm.fixed;
    if (scale < 0.0f) {
        Vector squares = {};
        for (int64_t at = 0; at < d; at += LANES) {
            const Vector v = load(u + at) - mean;
            squares += v * v;
        }
        scale = 1.0f / __builtin_sqrtf(total(squares) / d + norm.eps);
    }
    kept[0] = mean;
    kept[1] = scale;
    for (int64_t at = 0; at < d; at += LANES) {
        Vector v = (load(u + at) - mean) * scale * load(norm.gain + at);
        if (norm.bias) v += load(norm.bias + at);
        store(z + at, v);
    }
}

// du from dz of one row, and what it adds to the gradients of gain and bias.
inline void norm_row_back(const Norm& norm, int64_t d, const float* u, const float* kept, const float* dz, float* du,
                          float* dgain, float* dbias) {
    if (!norm.gain) {
        std::memcpy(du, dz, sizeof(float) * d);
        return;
    }
    const float mean = kept[0], scale = kept[1];
    Vector sum = {}, along = {};
    for (int64_t at = 0; at < d; at += LANES) {
        const Vector x = (load(u + at) - mean) * scale, g = load(dz + at), dx = g * load(norm.gain + at);
        store(dgain + at, load(dgain + at) + g * x);
        if (norm.bias) store(dbias + at, load(dbias + at) + g);
        sum += dx;
        along += dx * x;
    }
    const float centre = norm.centred ? total(sum) / d : 0.0f, slope = norm.fixed < 0.0f ? total(along) / d : 0.0f;
    for (int64_t at = 0; at < d; at += LANES) {
        const Vector x = (load(u + at) - mean) * scale, dx = load(dz + at) * load(norm.gain + at);
        store(du + at, (dx - centre - x * slope) * scale);
    }
}

}  // namespace
