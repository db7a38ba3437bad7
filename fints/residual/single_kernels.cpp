// Schemes of one stream on a CPU: one pass adds what the last branch returned and norms what the next one gets.
//
// All arrays are float32; d is a multiple of 16. The same number of threads gives the same bits.
//
// Shapes: t tokens, d width.

#include <cstdint>
#include <cstring>
#include <vector>

#include "norm.h"
#include "share.h"
#include "vectors.h"

namespace {

// h = skip x + scale y, where skip is one number and scale one number or, if `wide`, one a feature; null is 1.
// Without y there is nothing to add: h is x.
struct Sum {
    int64_t t, d;
    const float *x, *y, *skip, *scale;
    int wide;
    int threads;

    Vector factor(int64_t at) const { return !scale ? fill(1.0f) : wide ? load(scale + at) : fill(*scale); }
    float carried() const { return skip ? *skip : 1.0f; }
};

// h, unless null, and u = N(h), with two numbers a token in `kept`.
void add_and_norm(const Sum& s, const Norm& norm, float* kept, float* h, float* u) {
    share(s.t, GRAIN, s.threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        std::vector<float> room(s.d);
        for (int64_t token = first; token < last; token++) {
            const float* row = s.x + token * s.d;
            if (s.y) {
                const float* y = s.y + token * s.d;
                float* sum = h ? h + token * s.d : room.data();
                for (int64_t at = 0; at < s.d; at += LANES)
                    store(sum + at, s.carried() * load(row + at) + s.factor(at) * load(y + at));
                row = sum;
            }
            norm_row(norm, s.d, row, kept + 2 * token, u + token * s.d);
        }
    });
}

// From du, and `more` that later uses of h send back, to the gradients of x and y; dy may be null where it is dx.
// Sums over tokens, in this order: gain (d), bias (d), scale (d, or the first number unless wide), skip.
void add_and_norm_back(const Sum& s, const Norm& norm, const float* kept, const float* du, const float* more,
                       float* dx, float* dy, float* sums) {
    const int64_t d = s.d;
    share(s.t, GRAIN, s.threads, 3 * d + LANES, sums, [&](int64_t first, int64_t last, float* own) {
        std::vector<float> room(d), dh(d);
        float *dgain = own, *dbias = own + d, *dscale = own + 2 * d, *dskip = own + 3 * d;
        // What a norm sends back is almost orthogonal to what it was given: within a token a factor's terms cancel,
        // and a sum over tokens that is not double keeps little of what is left.
        double of_scale = 0.0, of_skip = 0.0;
        for (int64_t token = first; token < last; token++) {
            const float *x = s.x + token * d, *row = x, *y = s.y ? s.y + token * d : nullptr;
            if (y) {
                for (int64_t at = 0; at < d; at += LANES)
                    store(room.data() + at, s.carried() * load(x + at) + s.factor(at) * load(y + at));
                row = room.data();
            }
            norm_row_back(norm, d, row, kept + 2 * token, du + token * d, dh.data(), dgain, dbias);
            Vector along_x = {}, along_y = {};
            for (int64_t at = 0; at < d; at += LANES) {
                Vector g = load(dh.data() + at);
                if (more) g += load(more + token * d + at);
                if (dy) store(dy + token * d + at, s.factor(at) * g);
                if (s.scale && s.wide) store(dscale + at, load(dscale + at) + g * load(y + at));
                if (s.scale && !s.wide) along_y += g * load(y + at);
                if (s.skip) along_x += g * load(x + at);
                store(dx + token * d + at, s.carried() * g);
            }
            if (s.scale && !s.wide) of_scale += total(along_y);
            if (s.skip) of_skip += total(along_x);
        }
        if (!s.wide) dscale[0] += static_cast<float>(of_scale);
        dskip[0] += static_cast<float>(of_skip);
    });
}

}  // namespace

extern "C" {

void fints_single(int64_t t, int64_t d, const float* x, const float* y, const float* skip, const float* scale,
                  int wide, const float* gain, const float* bias, int centred, float eps, float fixed, float* kept,
                  float* h, float* u, int threads) {
    add_and_norm({t, d, x, y, skip, scale, wide, threads}, {gain, bias, centred, eps, fixed}, kept, h, u);
}

void fints_single_back(int64_t t, int64_t d, const float* x, const float* y, const float* skip, const float* scale,
                       int wide, const float* gain, const float* bias, int centred, float eps, float fixed,
                       const float* kept, const float* du, const float* more, float* dx, float* dy, float* sums,
                       int threads) {
    add_and_norm_back({t, d, x, y, skip, scale, wide, threads}, {gain, bias, centred, eps, fixed}, kept, du, more, dx,
                      dy, sums);
}

// The same of several networks, h = x + y: t tokens each; gain and bias of one lie `step` after those of the one before.
void fints_singles(int64_t members, int64_t t, int64_t d, int64_t step, const float* x, const float* y,
                   const float* gain, const float* bias, int centred, float eps, float* kept, float* h, float* u,
                   int threads) {
#pragma omp parallel for num_threads(std::min<int64_t>(threads, members)) schedule(static, 1)
    for (int64_t k = 0; k < members; k++) {
        const int64_t at = k * t * d;
        const Norm norm{gain + k * step, bias ? bias + k * step : nullptr, centred, eps};
        add_and_norm({t, d, x + at, y ? y + at : nullptr, nullptr, nullptr, 0, 1}, norm, kept + k * t * 2,
                     y ? h + at : nullptr, u + at);
    }
}

// In `sums` (members, 3 d + 16), zeros at first: the gradients of gain and bias, and what is not used.
void fints_singles_back(int64_t members, int64_t t, int64_t d, int64_t step, const float* x, const float* y,
                        const float* gain, const float* bias, int centred, float eps, const float* kept,
                        const float* du, const float* more, float* dx, float* sums, int threads) {
#pragma omp parallel for num_threads(std::min<int64_t>(threads, members)) schedule(static, 1)
    for (int64_t k = 0; k < members; k++) {
        const int64_t at = k * t * d;
        const Norm norm{gain + k * step, bias ? bias + k * step : nullptr, centred, eps};
        add_and_norm_back({t, d, x + at, y ? y + at : nullptr, nullptr, nullptr, 0, 1}, norm, kept + k * t * 2, du + at,
                          more ? more + at : nullptr, dx + at, nullptr, sums + k * (3 * d + LANES));
    }
}

}  // extern "C"
