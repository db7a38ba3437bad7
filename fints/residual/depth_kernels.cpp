// Attention over depth on a CPU: each step writes one source and attends over several, in one pass.
//
// Sources lie in slots that are filled one by one, each with all tokens, `s` numbers apart; one over the root
// mean square of each is kept beside them. All arrays are float32 and widths are multiples of 16. Sums over tokens are
// taken by thread, and the threads' sums in their order, so the same number of threads gives the same bits.
//
// Shapes: t tokens, d width, n sources of a step.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

namespace {

inline float dot(int64_t d, const float* a, const float* b) {
    Vector sum = {};
    for (int64_t at = 0; at < d; at += LANES) sum += load(a + at) * load(b + at);
    return total(sum);
}

// y += a x
inline void add(int64_t d, float a, const float* x, float* y) {
    for (int64_t at = 0; at < d; at += LANES) store(y + at, load(y + at) + a * load(x + at));
}

// What a step is, beside its arrays.
struct Step {
    int64_t t, d, s;  // s: numbers from one slot to the next, at least t d
    const int64_t* chosen;  // the slots of its n sources
    int n;
    int slot;   // where y is written
    int grows;  // whether the slot before it is added to y
    int normed, sigmoid;
    float eps, factor;
    int threads;
};

template <class Work>
void each_share(const Step& p, const Work& work) {
    int64_t chunks = std::max<int64_t>(1, std::min<int64_t>(p.threads, p.t / 64));
#pragma omp parallel for num_threads(chunks) schedule(static, 1)
    for (int64_t c = 0; c < chunks; c++) work(c, p.t * c / chunks, p.t * (c + 1) / chunks);
}

void normalise(const Step& p, float* alpha) {
    if (p.sigmoid) {
        for (int i = 0; i < p.n; i++) alpha[i] = 1.0f / (1.0f + std::exp(-alpha[i]));
        return;
    }
    float most = *std::max_element(alpha, alpha + p.n), sum = 0.0f;
    for (int i = 0; i < p.n; i++) sum += alpha[i] = std::exp(alpha[i] - most);
    for (int i = 0; i < p.n; i++) alpha[i] /= sum;
}

void attend(const Step& p, const float* y, const float* query, float* sources, float* scale, float* alpha,
            float* dots, float* u) {
    each_share(p, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t k = first; k < last; k++) {
            float *v = sources + k * p.d, *r = scale + k;
            float *fresh = v + p.slot * p.s, *a = alpha + k * p.n, *z = dots + k * p.n, *h = u + k * p.d;
            std::memcpy(fresh, y + k * p.d, 4 * p.d);
            if (p.grows) add(p.d, 1.0f, fresh - p.s, fresh);
            r[p.slot * p.t] = p.normed ? 1.0f / std::sqrt(dot(p.d, fresh, fresh) / p.d + p.eps) : 1.0f;
            if (p.n == 1) {
                std::memcpy(h, v + p.chosen[0] * p.s, 4 * p.d);
                continue;
            }
            for (int i = 0; i < p.n; i++) {
                z[i] = dot(p.d, v + p.chosen[i] * p.s, query);
                a[i] = z[i] * r[p.chosen[i] * p.t];
            }
            normalise(p, a);
            for (int64_t at = 0; at < p.d; at += LANES) {
                Vector sum = {};
                for (int i = 0; i < p.n; i++) sum += a[i] * load(v + p.chosen[i] * p.s + at);
                store(h + at, p.factor * sum);
            }
        }
    });
}

// `more` holds the gradient of all slots so far and takes up this step's.
void attend_back(const Step& p, const float* query, const float* sources, const float* scale, const float* alpha,
                 const float* dots, const float* du, float* more, float* dy, float* dquery) {
    // In float32 a long sum would lose digits: only a few tokens are added up in it.
    std::vector<double> partial(p.d * std::max(1, p.threads), 0.0);
    each_share(p, [&](int64_t share, int64_t first, int64_t last) {
        std::vector<float> ds(p.n), few(p.d, 0.0f);
        float* dq = few.data();
        for (int64_t k = first; k < last; k++) {
            const float *v = sources + k * p.d, *r = scale + k, *g = du + k * p.d;
            const float *a = alpha + k * p.n, *z = dots + k * p.n;
            float* dv = more + k * p.d;
            if (p.n == 1) add(p.d, 1.0f, g, dv + p.chosen[0] * p.s);
            if (p.n > 1) {
                float mean = 0.0f;
                for (int i = 0; i < p.n; i++) {
                    ds[i] = p.factor * dot(p.d, v + p.chosen[i] * p.s, g);
                    mean += a[i] * ds[i];
                }
                for (int i = 0; i < p.n; i++) {
                    const int64_t j = p.chosen[i];
                    const float slope = a[i] * (p.sigmoid ? (1.0f - a[i]) * ds[i] : ds[i] - mean);
                    const float rj = r[j * p.t], of_query = slope * rj, of_g = p.factor * a[i];
                    const float of_v = p.normed ? -slope * z[i] * rj * rj * rj / p.d : 0.0f;
                    const float* vj = v + j * p.s;
                    float* dvj = dv + j * p.s;
                    for (int64_t at = 0; at < p.d; at += LANES) {
                        const Vector x = load(vj + at);
                        store(dvj + at,
                              load(dvj + at) + of_g * load(g + at) + of_query * load(query + at) + of_v * x);
                        store(dq + at, load(dq + at) + of_query * x);
                    }
                }
            }
            // The steps after this one have added theirs, so the gradient of this slot is whole.
            const float* fresh = dv + p.slot * p.s;
            std::memcpy(dy + k * p.d, fresh, 4 * p.d);
            if (p.grows) add(p.d, 1.0f, fresh, dv + (p.slot - 1) * p.s);
            if ((k - first) % 16 == 15 || k + 1 == last)
                for (int64_t j = 0; j < p.d; j++) {
                    partial[share * p.d + j] += dq[j];
                    dq[j] = 0.0f;
                }
        }
    });
    for (int64_t j = 0; j < p.d; j++) {
        double sum = 0.0;
        for (int c = 0; c < std::max(1, p.threads); c++) sum += partial[c * p.d + j];
        dquery[j] = static_cast<float>(sum);
    }
}

}  // namespace

extern "C" {

void fints_depth(int64_t t, int64_t d, int64_t s, const int64_t* chosen, int n, int slot, int grows, int normed,
                 int sigmoid, float eps, float factor, const float* y, const float* query, float* sources,
                 float* scale, float* alpha, float* dots, float* u, int threads) {
    attend({t, d, s, chosen, n, slot, grows, normed, sigmoid, eps, factor, threads}, y, query, sources, scale,
           alpha, dots, u);
}

void fints_depth_back(int64_t t, int64_t d, int64_t s, const int64_t* chosen, int n, int slot, int grows,
                      int normed, int sigmoid, float eps, float factor, const float* query, const float* sources,
                      const float* scale, const float* alpha, const float* dots, const float* du, float* more,
                      float* dy, float* dquery, int threads) {
    attend_back({t, d, s, chosen, n, slot, grows, normed, sigmoid, eps, factor, threads}, query, sources, scale,
                alpha, dots, du, more, dy, dquery);
}

}  // extern "C"
