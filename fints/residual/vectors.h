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

}  // namespace
