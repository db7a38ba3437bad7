// Manifold Hyper-Connections on a CPU: one pass writes what the last branch returned, maps each token's streams to
// its logits, makes doubly stochastic matrices of them, and reads what the next branch gets.
//
// Sixteen tokens go together, a lane each where there are many small numbers a token, as in Sinkhorn's iteration.
// All arrays are float32; d is a multiple of 16. The same number of threads gives the same bits.
//
// Shapes: t tokens, n streams, d width.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementary.h"
#include "share.h"
#include "streams.h"
#include "vectors.h"

namespace {

// Logits of a matrix no further apart than this: exponentials of them, and all that follows, stay far from the
// smallest float, so Sinkhorn's iteration need not run on logarithms.
constexpr float NEAR = 30.0f;

// One normalisation of M over rows or columns; keeps the sums.
template <int N>
inline void normalise_near(Vector* m, int across, int along, Vector* sums) {
    for (int a = 0; a < N; a++) {
        Vector* line = m + a * across;
        Vector sum = line[0];
        for (int b = 1; b < N; b++) sum += line[b * along];
        const Vector factor = 1.0f / sum;
        for (int b = 0; b < N; b++) line[b * along] *= factor;
        sums[a] = sum;
    }
}

// Its way back, of the gradient with respect to log M; undoes the normalisation of M too.
template <int N>
inline void normalise_near_back(Vector* dz, Vector* m, int across, int along, const Vector* sums) {
    for (int a = 0; a < N; a++) {
        Vector *line = m + a * across, *gradient = dz + a * across;
        Vector sum = gradient[0];
        for (int b = 1; b < N; b++) sum += gradient[b * along];
        for (int b = 0; b < N; b++) {
            gradient[b * along] -= line[b * along] * sum;
            line[b * along] *= sums[a];
        }
    }
}

// One normalisation of log M over rows or columns; keeps M in `kept`.
template <int N>
inline void normalise(Vector* z, int across, int along, Vector* kept) {
    for (int a = 0; a < N; a++) {
        Vector* line = z + a * across;
        Vector top = line[0];
        for (int b = 1; b < N; b++) top = largest(top, line[b * along]);
        Vector sum = {}, e[N];
        for (int b = 0; b < N; b++) {
            e[b] = exponential(line[b * along] - top);
            sum += e[b];
        }
        Vector shift = top + logarithm(sum), share = 1.0f / sum;
        for (int b = 0; b < N; b++) {
            line[b * along] -= shift;
            kept[a * across + b * along] = e[b] * share;
        }
    }
}

template <int N>
inline void normalise_back(Vector* dz, int across, int along, const Vector* kept) {
    for (int a = 0; a < N; a++) {
        Vector sum = {};
        for (int b = 0; b < N; b++) sum += dz[a * across + b * along];
        for (int b = 0; b < N; b++) dz[a * across + b * along] -= kept[a * across + b * along] * sum;
    }
}

// Sinkhorn's iteration on 16 matrices of logits and its way back, on logarithms where it must be.
template <int N>
class Sinkhorn {
  public:
    explicit Sinkhorn(int iterations) : iterations_(iterations), kept_(2 * iterations * N * N) {}

    // z, logits, become M.
    void forward(Vector* z) {
        Vector top = z[0], bottom = z[0];
        for (int i = 1; i < N * N; i++) {
            top = largest(top, z[i]);
            bottom = z[i] < bottom ? z[i] : bottom;
        }
        near_ = true;
        for (int lane = 0; lane < LANES; lane++) near_ &= top[lane] - bottom[lane] < NEAR;
        Vector* kept = kept_.data();
        if (near_) {
            for (int i = 0; i < N * N; i++) z[i] = exponential(z[i] - top);
            for (int each = 0; each < iterations_; each++, kept += 2 * N) {
                normalise_near<N>(z, 1, N, kept);
                normalise_near<N>(z, N, 1, kept + N);
            }
            return;
        }
        for (int each = 0; each < iterations_; each++, kept += 2 * N * N) {
            normalise<N>(z, 1, N, kept);
            normalise<N>(z, N, 1, kept + N * N);
        }
        std::memcpy(z, kept - N * N, sizeof(Vector) * N * N);
    }

    // From dM to dlogits in `dz`; M of the last forward pass is lost.
    void backward(Vector* m, Vector* dz) {
        for (int i = 0; i < N * N; i++) dz[i] *= m[i];
        if (near_) {
            const Vector* kept = kept_.data() + 2 * N * iterations_;
            for (int each = 0; each < iterations_; each++) {
                kept -= 2 * N;
                normalise_near_back<N>(dz, m, N, 1, kept + N);
                normalise_near_back<N>(dz, m, 1, N, kept);
            }
            return;
        }
        const Vector* kept = kept_.data() + 2 * N * N * iterations_;
        for (int each = 0; each < iterations_; each++) {
            kept -= 2 * N * N;
            normalise_back<N>(dz, N, 1, kept + N * N);
            normalise_back<N>(dz, 1, N, kept);
        }
    }

  private:
    int iterations_;
    bool near_ = true;
    std::vector<Vector> kept_;
};

// How logits [p | q | r] (2 n + n^2) follow from a token's streams x (n d): scale * (x phi) / rms(x) + b, with one
// scale each for p, q and r.
struct Logits {
    const float *phi, *scales, *b;
    float eps;
    int iterations;
};

template <int N>
struct Layout {
    static constexpr int SIZE = 2 * N + N * N, VECTORS = (SIZE + LANES - 1) / LANES, PADDED = VECTORS * LANES;
    static constexpr int WRITE = (N + 1) * N;
    // Which scale logit i has.
    static constexpr int part(int i) { return i < N ? 0 : i < 2 * N ? 1 : 2; }
};

// products (R, padded) = rows (R, width) times phi (width, padded).
template <int R, int V>
inline void multiply(int64_t width, const float* rows, const float* phi, float* products) {
    Vector sum[R][V] = {};
    for (int64_t k = 0; k < width; k++) {
        Vector v[V];
        for (int j = 0; j < V; j++) v[j] = load(phi + (k * V + j) * LANES);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < V; j++) sum[r][j] += rows[r * width + k] * v[j];
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < V; j++) store(products + (r * V + j) * LANES, sum[r][j]);
}

// dh (R, width) += dproducts (R, padded) times phi^T (size, width); dphi (size, width) += dproducts^T h.
template <int R, int V>
inline void multiply_back(int64_t width, int size, const float* dproducts, const float* rows, const float* phi,
                          float* dh, float* dphi) {
    for (int64_t at = 0; at < width; at += LANES) {
        Vector h[R], sum[R];
        for (int r = 0; r < R; r++) sum[r] = load(dh + r * width + at);
        for (int l = 0; l < size; l++) {
            const Vector v = load(phi + l * width + at);
            for (int r = 0; r < R; r++) sum[r] += dproducts[r * V * LANES + l] * v;
        }
        for (int r = 0; r < R; r++) {
            store(dh + r * width + at, sum[r]);
            h[r] = load(rows + r * width + at);
        }
        for (int l = 0; l < size; l++) {
            // Two sums, since one would wait for itself.
            Vector even = load(dphi + l * width + at), odd = {};
            for (int r = 0; r + 1 < R; r += 2) {
                even += dproducts[r * V * LANES + l] * h[r];
                odd += dproducts[(r + 1) * V * LANES + l] * h[r + 1];
            }
            if (R % 2) even += dproducts[(R - 1) * V * LANES + l] * h[R - 1];
            store(dphi + l * width + at, even + odd);
        }
    }
}

// The coefficients of 16 tokens, a lane each, and the way back to their logits.
template <int N>
struct Gates {
    using L = Layout<N>;
    Sinkhorn<N> sinkhorn;
    Vector gates[2 * N], m[N * N];

    explicit Gates(int iterations) : sinkhorn(iterations) {}

    void forward(const Vector* logits) {
        for (int i = 0; i < 2 * N; i++) gates[i] = logistic(logits[i]);
        for (int i = 0; i < N * N; i++) m[i] = logits[2 * N + i];
        sinkhorn.forward(m);
    }

    // read = sigmoid(p), write = M transposed above 2 sigmoid(q).
    void spread(int count, float* read, float* write) const {
        for (int lane = 0; lane < count; lane++, read += N, write += L::WRITE)
            for (int i = 0; i < N; i++) {
                read[i] = gates[i][lane];
                write[N * N + i] = 2.0f * gates[N + i][lane];
                for (int j = 0; j < N; j++) write[j * N + i] = m[i * N + j][lane];
            }
    }

    void backward(int count, const float* dread, const float* dwrite, Vector* dlogits) {
        for (int i = 0; i < L::SIZE; i++) dlogits[i] = Vector{};
        for (int lane = 0; lane < count; lane++, dread += N, dwrite += L::WRITE)
            for (int i = 0; i < N; i++) {
                dlogits[i][lane] = dread[i];
                dlogits[N + i][lane] = 2.0f * dwrite[N * N + i];
                for (int j = 0; j < N; j++) dlogits[2 * N + i * N + j][lane] = dwrite[j * N + i];
            }
        for (int i = 0; i < 2 * N; i++) dlogits[i] *= gates[i] * (1.0f - gates[i]);
        sinkhorn.backward(m, dlogits + 2 * N);
    }
};

// Products of 16 tokens to logits, a lane each; `inverse` is one over their root mean squares.
template <int N>
inline void logits_of(const Logits& maps, const float* products, Vector inverse, Vector* logits) {
    using L = Layout<N>;
    for (int start = 0; start < L::PADDED; start += LANES) {
        Vector v[LANES];
        for (int lane = 0; lane < LANES; lane++) v[lane] = load(products + lane * L::PADDED + start);
        transpose(v);
        for (int i = start; i < std::min(L::SIZE, start + LANES); i++)
            logits[i] = maps.b[i] + maps.scales[L::part(i)] * (v[i - start] * inverse);
    }
}

// `products` (t, padded) and `inverse` (t), both up to a multiple of 16 tokens, and `read` are for the way back.
template <int N>
void manifold(const Pass& p, const Logits& maps, float* products, float* inverse, float* read, float* write,
              float* h_out, float* u) {
    using L = Layout<N>;
    const int64_t width = N * p.d, groups = (p.t + LANES - 1) / LANES;
    std::vector<float> phi(width * L::PADDED, 0.0f);
    for (int64_t k = 0; k < width; k++)
        std::memcpy(phi.data() + k * L::PADDED, maps.phi + k * L::SIZE, sizeof(float) * L::SIZE);
    share(groups, GRAIN / LANES, p.threads, 0, nullptr, [&](int64_t first, int64_t last, float*) {
        Gates<N> gates(maps.iterations);
        Vector logits[L::SIZE];
        constexpr int R = L::VECTORS <= 2 ? 8 : 4;
        for (int64_t start = first * LANES; start < last * LANES; start += LANES) {
            const int count = int(std::min<int64_t>(LANES, p.t - start));
            const float* h = nullptr;
            Vector scale = {};
            for (int lane = count - 1; lane >= 0; lane--) {
                h = streams_of<N>(p, start + lane, h_out + (start + lane) * width);
                Vector squares = {};
                for (int64_t at = 0; at < width; at += LANES) squares += load(h + at) * load(h + at);
                scale[lane] = 1.0f / __builtin_sqrtf(total(squares) / width + maps.eps);
            }
            float* own = products + start * L::PADDED;
            int lane = 0;
            for (; lane + R <= count; lane += R)
                multiply<R, L::VECTORS>(width, h + lane * width, phi.data(), own + lane * L::PADDED);
            for (; lane < count; lane++)
                multiply<1, L::VECTORS>(width, h + lane * width, phi.data(), own + lane * L::PADDED);
            std::fill(own + count * L::PADDED, own + LANES * L::PADDED, 0.0f);
            store(inverse + start, scale);
            logits_of<N>(maps, own, scale, logits);
            gates.forward(logits);
            gates.spread(count, read + start * N, write + start * L::WRITE);
            for (lane = 0; lane < count; lane++)
                read_row<N>(p.d, h + lane * width, read + (start + lane) * N, u + (start + lane) * p.d);
        }
    });
}

// Sums over tokens, in this order: phi^T (size, n d), b (size), scales (3).
template <int N>
void manifold_back(const Pass& p, const Back& b, const Logits& maps, const float* products, const float* inverse,
                   const float* read, const float* dwrite, float* sums) {
    using L = Layout<N>;
    const int64_t width = N * p.d, groups = (p.t + LANES - 1) / LANES;
    const int64_t size = L::SIZE * width + L::SIZE + 3, lanes = L::WRITE * LANES;
    std::vector<float> phi(L::SIZE * width), all(size + lanes);
    for (int64_t k = 0; k < width; k++)
        for (int l = 0; l < L::SIZE; l++) phi[l * width + k] = maps.phi[k * L::SIZE + l];
    share(groups, GRAIN / LANES, p.threads, size + lanes, all.data(), [&](int64_t first, int64_t last, float* own) {
        float *db = own + L::SIZE * width, *dscales = db + L::SIZE;
        std::vector<float> room(LANES * width), all_dh(LANES * width);
        Gates<N> gates(maps.iterations);
        Vector logits[L::SIZE], dlogits[L::SIZE];
        for (int64_t start = first * LANES; start < last * LANES; start += LANES) {
            const int count = int(std::min<int64_t>(LANES, p.t - start));
            const float* h = nullptr;
            float dread[LANES * N] = {};
            for (int lane = count - 1; lane >= 0; lane--) {
                h = streams_of<N>(p, start + lane, room.data() + lane * width);
                for (int i = 0; i < N; i++) {
                    Vector dot = {};
                    for (int64_t at = 0; at < p.d; at += LANES)
                        dot += load(h + i * p.d + at) * load(b.du + (start + lane) * p.d + at);
                    dread[lane * N + i] = total(dot);
                }
            }
            const float* product = products + start * L::PADDED;
            const Vector scale = load(inverse + start);
            logits_of<N>(maps, product, scale, logits);
            gates.forward(logits);
            gates.backward(count, dread, dwrite + start * L::WRITE, dlogits);
            // To products and root mean squares: logit = b + s z, z = product * scale.
            float dproducts[LANES * L::PADDED];
            Vector along = {};
            for (int from = 0; from < L::PADDED; from += LANES) {
                Vector z[LANES], v[LANES] = {};
                for (int lane = 0; lane < LANES; lane++) z[lane] = load(product + lane * L::PADDED + from);
                transpose(z);
                for (int i = from; i < std::min(L::SIZE, from + LANES); i++) {
                    const Vector slope = dlogits[i] * (z[i - from] * scale);
                    dscales[L::part(i)] += total(slope);
                    db[i] += total(dlogits[i]);
                    along += maps.scales[L::part(i)] * slope;
                    v[i - from] = maps.scales[L::part(i)] * scale * dlogits[i];
                }
                transpose(v);
                for (int lane = 0; lane < LANES; lane++) store(dproducts + lane * L::PADDED + from, v[lane]);
            }
            const Vector shrink = along * scale * scale / float(width);
            for (int lane = 0; lane < count; lane++) {
                const float *g = b.du + (start + lane) * p.d, *row = h + lane * width;
                for (int i = 0; i < N; i++) {
                    const float r = read[(start + lane) * N + i];
                    const float* more = b.more ? b.more + ((start + lane) * N + i) * p.d : nullptr;
                    float* dh = all_dh.data() + (lane * N + i) * p.d;
                    for (int64_t at = 0; at < p.d; at += LANES) {
                        Vector sum = r * load(g + at) - shrink[lane] * load(row + i * p.d + at);
                        if (more) sum += load(more + at);
                        store(dh + at, sum);
                    }
                }
            }
            if (count == LANES)
                multiply_back<LANES, L::VECTORS>(width, L::SIZE, dproducts, h, phi.data(), all_dh.data(), own);
            else
                for (int lane = 0; lane < count; lane++)
                    multiply_back<1, L::VECTORS>(width, L::SIZE, dproducts + lane * L::PADDED, h + lane * width,
                                                 phi.data(), all_dh.data() + lane * width, own);
            for (int lane = 0; lane < count; lane++)
                streams_back<N>(p, b, start + lane, all_dh.data() + lane * width, own + size);
        }
    });
    add_lanes<N>(p, b, all.data() + size);
    std::memcpy(sums, all.data(), sizeof(float) * size);
}

}  // namespace

extern "C" {

void fints_manifold(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int64_t step,
                    const float* phi, const float* scales, const float* b, float eps, int iterations,
                    float* products, float* inverse, float* read, float* write, float* h, float* u, int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    const Logits maps{phi, scales, b, eps, iterations};
    WITH(N, n, manifold<N>(p, maps, products, inverse, read, write, h, u))
}

void fints_manifold_back(int64_t t, int64_t d, int n, const float* x, const float* y, const float* w, int64_t step,
                         const float* phi, const float* scales, const float* b, float eps, int iterations,
                         const float* products, const float* inverse, const float* read, const float* du,
                         const float* dwrite, const float* more, float* dx, float* dy, float* dw, float* sums,
                         int threads) {
    const Pass p{t, d, x, y, w, step, threads};
    const Back back{du, more, dx, dy, dw};
    const Logits maps{phi, scales, b, eps, iterations};
    WITH(N, n, manifold_back<N>(p, back, maps, products, inverse, read, dwrite, sums))
}

}  // extern "C"
