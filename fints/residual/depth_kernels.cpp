// Attention over depth on a CPU: each step writes one source, attends over several and norms what it read, in one pass.
//
// Sources lie in slots that are filled one by one, `s` numbers apart. A slot has the rows of all tokens, then for each
// token one over the root mean square of the source, then the logarithm of the sum of exponentials of the scores of
// the step that filled it.
//
// Steps of a group have sources in common, those that the group's first step reads. It reads them for all steps of
// the group at once (phase one) and leaves of each the largest score, the sum of exponentials and the sum of sources
// weighted by them; a later step merges these with the sources that came since (phase two). So a source is read
// from memory once a group, and what is computed is one softmax over all of them:
//
//     m = max(m_1, m_2),   l = e^(m_1 - m) l_1 + e^(m_2 - m) l_2,   u = (e^(m_1 - m) o_1 + e^(m_2 - m) o_2) / l
//
// On the way back a step does not add to the gradients of all that it read. It leaves the gradient of u, and the
// step that wrote a source sums up what its readers, which all ran before, send to it: their weights follow from
// the source, their query and that logarithm. So the weights are not kept and a gradient is written once.
//
// Tokens are taken 16 at a time, a lane each where a token has one number, so that a source is read from memory page
// by page. What has one number a token has room for `lanes` tokens, a multiple of 16.
//
// All arrays are float32 and widths are multiples of 16. Sums over tokens are taken by thread, and the threads'
// sums in their order, so the same number of threads gives the same bits.
//
// Shapes: t tokens, d width, n sources of a step.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementary.h"
#include "norm.h"
#include "share.h"
#include "vectors.h"

namespace {

// What a step is, beside its arrays.
struct Step {
    int64_t t, d, s;  // s: numbers from one slot to the next
    const int64_t* chosen;  // the slots of its n sources
    int n;
    int slot;   // where y is written
    int grows;  // whether the slot before it is added to y
    int normed, sigmoid;
    float eps, factor;
    int threads;

    int64_t lanes() const { return padded(t); }
    // Within a slot: one over the root mean square, and the logarithm of the sum of exponentials.
    int64_t scale() const { return t * d; }
    int64_t logarithm() const { return t * d + lanes(); }
};

// Up to 16 tokens.
struct Block {
    int64_t first;
    int count;
};

// Calls work(share, block) for each block of each thread's tokens, in their order.
template <class Work>
void each_block(const Step& p, const Work& work) {
    const int64_t blocks = p.lanes() / LANES;
    const int64_t chunks = std::max<int64_t>(1, std::min<int64_t>(p.threads, p.t / GRAIN));
#pragma omp parallel for num_threads(chunks) schedule(static, 1)
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t at = blocks * c / chunks; at < blocks * (c + 1) / chunks; at++)
            work(c, Block{at * LANES, int(std::min<int64_t>(LANES, p.t - at * LANES))});
}

// Lane k is the product of the k-th rows of a and b, 0 beyond the last; `step` is 0 where b is one row for all.
inline Vector products(const Block& block, int64_t d, const float* a, const float* b, int64_t step) {
    Vector sums[LANES] = {};
    for (int k = 0; k < block.count; k++) {
        Vector sum = {};
        for (int64_t at = 0; at < d; at += LANES) sum += load(a + k * d + at) * load(b + k * step + at);
        sums[k] = sum;
    }
    return sixteen_totals(sums);
}

inline Vector inverse_root(Vector squares, int64_t d, float eps) {
    float found[LANES];
    store(found, squares);
    for (int k = 0; k < LANES; k++) found[k] = 1.0f / std::sqrt(found[k] / d + eps);
    return load(found);
}

// to_k += sum_i weight_ik v_ik for M sources of a block's rows.
template <int M>
inline void add_rows(const Block& block, int64_t d, const float* const* v, const float* const* weights, float* to) {
    // In the function's own variables, which a store cannot be thought to change.
    const float *rows[M], *of[M];
    for (int i = 0; i < M; i++) {
        rows[i] = v[i];
        of[i] = weights[i];
    }
    for (int k = 0; k < block.count; k++) {
        float weight[M];
        for (int i = 0; i < M; i++) weight[i] = of[i][k];
        for (int64_t at = k * d; at < (k + 1) * d; at += LANES) {
            Vector sum = load(to + at);
            for (int i = 0; i < M; i++) sum += weight[i] * load(rows[i] + at);
            store(to + at, sum);
        }
    }
}

inline void add_all_rows(const Block& block, int64_t d, int n, const float* const* v, const float* const* weights,
                         float* to) {
    int i = 0;
    for (; i + 4 <= n; i += 4) add_rows<4>(block, d, v + i, weights + i, to);
    for (; i < n; i++) add_rows<1>(block, d, v + i, weights + i, to);
}

// What scores become: exponentials below their largest, `most`, and their sum. Sigmoids are not summed.
struct Sums {
    Vector most, sum;
};

inline Sums raise(const Step& p, int n, Vector* scores) {
    if (p.sigmoid) {
        for (int i = 0; i < n; i++) scores[i] = logistic(scores[i]);
        return {Vector{}, fill(1.0f)};
    }
    Vector most = scores[0], sum = {};
    for (int i = 1; i < n; i++) most = largest(most, scores[i]);
    for (int i = 0; i < n; i++) sum += scores[i] = exponential(scores[i] - most);
    return {most, sum};
}

// Weights of several sources for a block, by address too.
struct Weights {
    std::vector<Vector> values;
    std::vector<const float*> rows, weights;

    explicit Weights(int64_t n) : values(n), rows(n), weights(n) {
        for (int64_t i = 0; i < n; i++) weights[i] = reinterpret_cast<const float*>(&values[i]);
    }
};

// The group that a step is in.
struct Group {
    float* ahead;  // the number of the group that lies in it, 16 numbers, then a slot for each step after the first
    int first;     // step
    int common;    // how many sources its steps have in common; 0 where they read one by one
    int later;     // how many of its steps come after this one

    // Not where a pass that recomputes a part of the steps began within the group: there all is read at once.
    bool ready(const Step& p) const { return common && p.slot > first && *ahead == float(first); }
    float* slot(const Step& p, int step) const { return ahead + LANES + (step - first - 1) * p.s; }
};

inline void scores_of(const Step& p, const Block& block, const float* sources, const float* query, int begin, int end,
                      Weights& all) {
    for (int i = begin; i < end; i++) {
        const float* slot = sources + p.chosen[i] * p.s;
        all.rows[i - begin] = slot + block.first * p.d;
        all.values[i - begin] = products(block, p.d, all.rows[i - begin], query, 0) *
                                load(slot + p.scale() + block.first);
    }
}

void attend(const Step& p, const Group& group, const Norm& norm, const float* queries, const float* y, float* sources,
            float* u, float* kept, float* z) {
    const int64_t d = p.d;
    const bool ready = group.ready(p);
    const float* query = queries + (p.slot - 1) * d;
    each_block(p, [&](int64_t, const Block& block) {
        Weights all(p.n + 1);
        float *slot = sources + p.slot * p.s, *fresh = slot + block.first * d, *h = u + block.first * d;
        const float* added = y + block.first * d;
        for (int64_t at = 0; at < block.count * d; at += LANES) {
            Vector each = load(added + at);
            if (p.grows) each += load(fresh - p.s + at);
            store(fresh + at, each);
        }
        Vector r = fill(1.0f);
        if (p.normed) r = inverse_root(products(block, d, fresh, fresh, d), d, p.eps);
        store(slot + p.scale() + block.first, r);
        if (p.n == 1) {
            std::memcpy(h, sources + p.chosen[0] * p.s + block.first * d, sizeof(float) * block.count * d);
        } else {
            int n = p.n - (ready ? group.common : 0);
            scores_of(p, block, sources, query, p.n - n, p.n, all);
            Sums sums = raise(p, n, all.values.data());
            if (ready) {
                const float* known = group.slot(p, p.slot);
                const Vector before = load(known + p.scale() + block.first), top = largest(sums.most, before);
                const Vector of_fresh = exponential(sums.most - top), of_known = exponential(before - top);
                if (!p.sigmoid)
                    sums = {top, of_fresh * sums.sum + of_known * load(known + p.logarithm() + block.first)};
                for (int i = 0; i < n; i++) all.values[i] *= of_fresh;
                all.values[n] = of_known;
                all.rows[n++] = known + block.first * d;
            }
            store(slot + p.logarithm() + block.first, sums.most + logarithm(sums.sum));
            const Vector share = p.factor / sums.sum;
            for (int i = 0; i < n; i++) all.values[i] *= share;
            std::memset(h, 0, sizeof(float) * block.count * d);
            add_all_rows(block, d, n, all.rows.data(), all.weights.data(), h);
        }
        for (int k = 0; k < block.count; k++)
            norm_row(norm, d, h + k * d, kept + 2 * (block.first + k), z + (block.first + k) * d);
        if (!group.common || p.slot != group.first) return;
        for (int step = p.slot + 1; step <= p.slot + group.later; step++) {
            float *to = group.slot(p, step), *rows = to + block.first * d;
            scores_of(p, block, sources, queries + (step - 1) * d, 0, group.common, all);
            const Sums sums = raise(p, group.common, all.values.data());
            store(to + p.scale() + block.first, sums.most);
            store(to + p.logarithm() + block.first, sums.sum);
            std::memset(rows, 0, sizeof(float) * block.count * d);
            add_all_rows(block, d, group.common, all.rows.data(), all.weights.data(), rows);
        }
    });
    if (group.common && p.slot == group.first) *group.ahead = float(group.first);
}

// A step that read the source which this one wrote.
struct Reader {
    int64_t slot, n;
    double factor;
};

// What steps leave for the steps before them: in the slot of each the gradient of its u, and behind the rows for
// each token the product of both. Behind the last of `slots` lies the gradient of the latest source.
struct Left {
    float* arrived;
    int64_t slots;
};

// sum_k weight_k v_k of a block's rows
inline void sum_of_rows(const Block& block, int64_t d, const float* v, const float* weights, double* to) {
    constexpr int WIDE = 4;
    for (int64_t start = 0; start < d; start += WIDE * LANES) {
        const int width = int(std::min<int64_t>(WIDE, (d - start) / LANES));
        Vector sums[WIDE] = {};
        for (int k = 0; k < block.count; k++) {
            const float* row = v + k * d + start;
            if (width == WIDE)
                for (int j = 0; j < WIDE; j++) sums[j] += weights[k] * load(row + j * LANES);
            else
                for (int j = 0; j < width; j++) sums[j] += weights[k] * load(row + j * LANES);
        }
        for (int j = 0; j < width; j++)
            for (int lane = 0; lane < LANES; lane++) to[start + j * LANES + lane] += sums[j][lane];
    }
}

// dv of a block of the source that the step wrote; adds what the source gives to the gradients of its readers'
// queries to `dqueries` (count, d).
inline void gather(const Step& p, const Left& left, const Reader* readers, int count, const float* queries,
                   const float* sources, const Block& block, Weights& of_u, Weights& of_query, float* dv,
                   double* dqueries) {
    const int64_t d = p.d;
    const float *slot = sources + p.slot * p.s, *v = slot + block.first * d;
    const Vector r = load(slot + p.scale() + block.first);
    Vector slope = {};
    for (int k = 0; k < count; k++) {
        const Reader& reader = readers[k];
        const float* du = left.arrived + reader.slot * p.s;
        of_u.rows[k] = du + block.first * d;
        of_u.values[k] = fill(1.0f);
        of_query.values[k] = Vector{};
        if (reader.n == 1) continue;
        const float factor = float(reader.factor), *query = queries + (reader.slot - 1) * d;
        const Vector product = products(block, d, v, query, 0);
        const Vector along = factor * products(block, d, v, of_u.rows[k], d);
        Vector a, slope_of_score;
        if (p.sigmoid) {
            a = logistic(product * r);
            slope_of_score = a * (1.0f - a) * along;
        } else {
            a = exponential(product * r - load(sources + reader.slot * p.s + p.logarithm() + block.first));
            slope_of_score = a * (along - load(du + p.scale() + block.first));
        }
        const Vector to_query = slope_of_score * r;
        slope += to_query * product;
        of_u.values[k] = factor * a;
        of_query.values[k] = to_query;
        of_query.rows[k] = query;
        sum_of_rows(block, d, v, of_query.weights[k], dqueries + k * d);
    }
    std::memset(dv, 0, sizeof(float) * block.count * d);
    add_all_rows(block, d, count, of_u.rows.data(), of_u.weights.data(), dv);
    float slopes[LANES] = {};
    if (p.normed) store(slopes, slope * r * r / float(d));
    for (int64_t at = 0; at < d; at += LANES) {
        Vector sums[LANES] = {};
        for (int k = 0; k < count; k++) {
            if (readers[k].n == 1) continue;
            const Vector query = load(of_query.rows[k] + at);
            const float* weights = of_query.weights[k];
            for (int token = 0; token < LANES; token++) sums[token] += weights[token] * query;
        }
        for (int k = 0; k < block.count; k++) {
            float* to = dv + k * d + at;
            store(to, load(to) + sums[k] - slopes[k] * load(v + k * d + at));
        }
    }
}

// dy, and what the step adds to the gradients of the queries and of the norm. `handed` says whether the next step
// added this one's source to its own.
void attend_back(const Step& p, const Norm& norm, const float* queries, const float* sources, const float* u,
                 const float* kept, const float* dz, const Reader* readers, int count, int handed, const Left& left,
                 float* dy, float* dqueries, float* dnorm_gain, float* dnorm_bias) {
    // In float32 a long sum would lose digits: only a block's tokens are added up in it.
    const int64_t d = p.d, size = (2 + count) * d;
    std::vector<double> partial(size * std::max(1, p.threads), 0.0);
    each_block(p, [&](int64_t share, const Block& block) {
        Weights of_u(count), of_query(count);
        std::vector<float> few(2 * d, 0.0f);
        double* own_sums = partial.data() + share * size;
        const int64_t rows = block.first * d;
        float *slot = left.arrived + p.slot * p.s, *du = slot + rows;
        for (int k = 0; k < block.count; k++)
            norm_row_back(norm, d, u + rows + k * d, kept + 2 * (block.first + k), dz + rows + k * d, du + k * d,
                          few.data(), few.data() + d);
        store(slot + p.scale() + block.first, products(block, d, u + rows, du, d));
        float *own = dy + rows, *latest = left.arrived + left.slots * p.s + rows;
        gather(p, left, readers, count, queries, sources, block, of_u, of_query, own, own_sums + 2 * d);
        if (handed)
            for (int64_t at = 0; at < block.count * d; at += LANES) store(own + at, load(own + at) + load(latest + at));
        if (p.grows) std::memcpy(latest, own, sizeof(float) * block.count * d);
        for (int64_t j = 0; j < 2 * d; j++) own_sums[j] += few[j];
    });
    for (int64_t c = 1; c < std::max(1, p.threads); c++)
        for (int64_t j = 0; j < size; j++) partial[j] += partial[c * size + j];
    for (int64_t f = 0; f < d; f++) {
        if (norm.gain) dnorm_gain[f] = float(partial[f]);
        if (norm.bias) dnorm_bias[f] = float(partial[d + f]);
    }
    for (int k = 0; k < count; k++)
        for (int64_t f = 0; readers[k].n > 1 && f < d; f++)
            dqueries[(readers[k].slot - 1) * d + f] += float(partial[(2 + k) * d + f]);
}

}  // namespace

extern "C" {

void fints_depth(int64_t t, int64_t d, int64_t s, const int64_t* chosen, int n, int slot, int grows, int normed,
                 int sigmoid, float eps, float factor, const float* norm_gain, const float* norm_bias, int centred,
                 float norm_eps, const float* queries, float* ahead, int group, int common, int later, const float* y,
                 float* sources, float* u, float* kept, float* z, int threads) {
    const Step p{t, d, s, chosen, n, slot, grows, normed, sigmoid, eps, factor, threads};
    attend(p, {ahead, group, common, later}, {norm_gain, norm_bias, centred, norm_eps}, queries, y, sources, u, kept,
           z);
}

void fints_depth_back(int64_t t, int64_t d, int64_t s, const int64_t* chosen, int n, int slot, int grows,
                      int normed, int sigmoid, float eps, float factor, const float* norm_gain,
                      const float* norm_bias, int centred, float norm_eps, const float* queries, const void* readers,
                      int count, int handed, int64_t slots, const float* sources, const float* u, const float* kept,
                      const float* dz, float* arrived, float* dy, float* dqueries, float* dnorm_gain,
                      float* dnorm_bias, int threads) {
    const Step p{t, d, s, chosen, n, slot, grows, normed, sigmoid, eps, factor, threads};
    attend_back(p, {norm_gain, norm_bias, centred, norm_eps}, queries, sources, u, kept, dz,
                static_cast<const Reader*>(readers), count, handed, {arrived, slots}, dy, dqueries, dnorm_gain,
                dnorm_bias);
}

}  // extern "C"
