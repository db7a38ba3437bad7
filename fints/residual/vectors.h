// Vectors of 16 floats, which the compiler lowers to what the machine has.

#pragma once

#include <cstring>

namespace {

constexpr int LANES = 16;
typedef float Vector __attribute__((vector_size(4 * LANES)));

inline Vector load(const float* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

inline void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }

inline Vector fill(float x) { return x - Vector{}; }

typedef float Half __attribute__((vector_size(2 * LANES)));
typedef float Quarter __attribute__((vector_size(LANES)));

inline float total(Vector v) {
    Half h[2];
    std::memcpy(h, &v, sizeof v);
    h[0] += h[1];
    Quarter q[2];
    std::memcpy(q, h, sizeof q);
    q[0] += q[1];
    return (q[0][0] + q[0][2]) + (q[0][1] + q[0][3]);
}

// Lane i of vector j becomes lane j of vector i, of 16 vectors.
inline void transpose(Vector* v) {
#if defined(__clang__) || __GNUC__ >= 12
    // Squares of 8, 4, 2 and 1 lanes change places in turn.
    for (int i = 0; i < 8; i++) {
        const Vector a = v[i], b = v[i + 8];
        v[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
        v[i + 8] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    for (int each = 0; each < 8; each++) {
        const int i = each / 4 * 8 + each % 4;
        const Vector a = v[i], b = v[i + 4];
        v[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
        v[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    }
    for (int each = 0; each < 8; each++) {
        const int i = each / 2 * 4 + each % 2;
        const Vector a = v[i], b = v[i + 2];
        v[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
        v[i + 2] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
    for (int i = 0; i < LANES; i += 2) {
        const Vector a = v[i], b = v[i + 1];
        v[i] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
        v[i + 1] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    }
#else
    float rows[LANES][LANES], columns[LANES][LANES];
    std::memcpy(rows, v, sizeof rows);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++) columns[i][j] = rows[j][i];
    std::memcpy(v, columns, sizeof columns);
#endif
}

}  // namespace
