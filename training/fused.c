/* The recurrent layer's core for training: short convolution, SiLU, normalisation, gates and the gated delta rule,
 * forward and backward, one pass each. One thread; the caller runs one process a core.
 *
 * Per head and token, S is [DK][DV]:  S <- S*e;  u = k.S;  d = (v-u)*beta;  S <- S + k (x) d;  o = q.S
 * The backward pass walks back in blocks of BLOCK tokens from states that the forward pass left at block starts:
 * 16 states of 8 KB stay in L2. Built with reordered sums: this is training, bits are no contract here.
 */
#include <math.h>
#include <string.h>

#ifndef DK
#define DK 32
#endif
#ifndef DV
#define DV 64
#endif
#define W 4
#define BLOCK 16

typedef struct {
    int batch, length, heads;      /* key heads == value heads */
    int stride;                    /* floats between tokens of the projection: q | k | v | z | b | a */
} Dims;

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* pre: the convolution's output at token t, act: after SiLU. x points at token t of the projection. */
static void convolve(const float *x, int stride, int t, int channels, const float *w, float *pre, float *act) {
    int first = t < W - 1 ? W - 1 - t : 0;
    for (int c = 0; c < channels; c++) pre[c] = 0.0f;
    for (int j = first; j < W; j++) {
        const float *row = x - (long)(W - 1 - j) * stride, *wj = w + (long)j * channels;
        for (int c = 0; c < channels; c++) pre[c] += row[c] * wj[c];
    }
    for (int c = 0; c < channels; c++) act[c] = pre[c] / (1.0f + expf(-pre[c]));
}

static float inverse_norm(const float *x) {
    float s = 1e-6f;
    for (int i = 0; i < DK; i++) s += x[i] * x[i];
    return 1.0f / sqrtf(s);
}

static void advance(float *S, const float *k, const float *v, float e, float beta, float *d) {
    float u[DV] = {0};
    for (int i = 0; i < DK; i++)
        for (int j = 0; j < DV; j++) u[j] += k[i] * S[i * DV + j];
    for (int j = 0; j < DV; j++) d[j] = (v[j] - e * u[j]) * beta;
    for (int i = 0; i < DK; i++)
        for (int j = 0; j < DV; j++) S[i * DV + j] = e * S[i * DV + j] + k[i] * d[j];
}

/* w: [W][channels] (taps first). states: [batch][blocks][heads][DK][DV]. pre, act: [batch][length][channels]. */
void forward(const Dims *dims, const float *proj, const float *w, const float *rate, const float *dt, float *out,
             float *pre, float *act, float *states) {
    const int H = dims->heads, keys = H * DK, channels = 2 * keys + H * DV, T = dims->length, R = dims->stride;
    const int blocks = (T + BLOCK - 1) / BLOCK;
    const float scale = 1.0f / sqrtf((float)DK);
    static float S[64 * DK * DV];
    for (int n = 0; n < dims->batch; n++) {
        memset(S, 0, sizeof(float) * H * DK * DV);
        for (int t = 0; t < T; t++) {
            const long at = (long)n * T + t;
            const float *x = proj + at * R, *gates = x + channels + H * DV;
            float *y = act + at * channels;
            convolve(x, R, t, channels, w, pre + at * channels, y);
            if (t % BLOCK == 0)
                memcpy(states + ((long)n * blocks + t / BLOCK) * H * DK * DV, S, sizeof(float) * H * DK * DV);
            for (int h = 0; h < H; h++) {
                float q[DK], k[DK], d[DV], o[DV] = {0}, *Sh = S + h * DK * DV;
                const float *yq = y + h * DK, *yk = y + keys + h * DK, *v = y + 2 * keys + h * DV;
                const float nq = inverse_norm(yq) * scale, nk = inverse_norm(yk);
                for (int i = 0; i < DK; i++) q[i] = yq[i] * nq, k[i] = yk[i] * nk;
                const float e = expf(-rate[h] * softplus(gates[H + h] + dt[h]));
                advance(Sh, k, v, e, sigmoid(gates[h]), d);
                for (int i = 0; i < DK; i++)
                    for (int j = 0; j < DV; j++) o[j] += q[i] * Sh[i * DV + j];
                memcpy(out + (at * H + h) * DV, o, sizeof o);
            }
        }
    }
}

/* y = x / |x| * s  ->  dx, from dy and the normalised n = x / |x|. */
static void normalise_back(const float *x, float inverse, float s, const float *dy, float *dx) {
    float dot = 0.0f;
    for (int i = 0; i < DK; i++) dot += dy[i] * x[i];
    dot *= inverse * inverse;
    for (int i = 0; i < DK; i++) dx[i] = (dy[i] - x[i] * dot) * inverse * s;
}

/* dproj: gradient of the projection's q | k | v and b | a columns (z is not ours). dw, drate, ddt are added to. */
void backward(const Dims *dims, const float *proj, const float *w, const float *rate, const float *dt, const float *pre,
              float *act, const float *states, const float *dout, float *dproj, float *dw, float *drate, float *ddt) {
    const int H = dims->heads, keys = H * DK, channels = 2 * keys + H * DV, T = dims->length, R = dims->stride;
    const int blocks = (T + BLOCK - 1) / BLOCK;
    const float scale = 1.0f / sqrtf((float)DK);
    static float saved[BLOCK][DK * DV], dS[DK * DV];
    static float Q[BLOCK][DK], K[BLOCK][DK], D[BLOCK][DV], E[BLOCK], B[BLOCK], NQ[BLOCK], NK[BLOCK];
    for (int n = 0; n < dims->batch; n++) {
        for (int h = 0; h < H; h++) {
            memset(dS, 0, sizeof dS);
            for (int block = blocks - 1; block >= 0; block--) {
                const int start = block * BLOCK, count = T - start < BLOCK ? T - start : BLOCK;
                float S[DK * DV];
                memcpy(S, states + (((long)n * blocks + block) * H + h) * DK * DV, sizeof S);
                for (int b = 0; b < count; b++) { /* forward again; saved[b] = state before token b */
                    const long at = (long)n * T + start + b;
                    const float *y = act + at * channels, *yq = y + h * DK, *yk = y + keys + h * DK;
                    const float *gates = proj + at * R + channels + H * DV;
                    NQ[b] = inverse_norm(yq), NK[b] = inverse_norm(yk);
                    for (int i = 0; i < DK; i++) Q[b][i] = yq[i] * NQ[b] * scale, K[b][i] = yk[i] * NK[b];
                    E[b] = expf(-rate[h] * softplus(gates[H + h] + dt[h]));
                    B[b] = sigmoid(gates[h]);
                    memcpy(saved[b], S, sizeof S);
                    advance(S, K[b], y + 2 * keys + h * DV, E[b], B[b], D[b]);
                }
                for (int b = count - 1; b >= 0; b--) {
                    const long at = (long)n * T + start + b;
                    float *y = act + at * channels, *yq = y + h * DK, *yk = y + keys + h * DK, *v = y + 2 * keys + h * DV;
                    const float *go = dout + (at * H + h) * DV, *gates = proj + at * R + channels + H * DV;
                    const float *q = Q[b], *k = K[b], *d = D[b], e = E[b], beta = B[b];
                    float dq[DK], dk[DK], dd[DV] = {0}, du[DV], de = 0.0f, dbeta = 0.0f;
                    for (int i = 0; i < DK; i++) {
                        const float *before = saved[b] + i * DV;
                        float *g = dS + i * DV, aq = 0.0f, ak = 0.0f;
                        for (int j = 0; j < DV; j++) {
                            aq += (e * before[j] + k[i] * d[j]) * go[j];
                            g[j] += q[i] * go[j];
                            ak += g[j] * d[j];
                            dd[j] += k[i] * g[j];
                        }
                        dq[i] = aq, dk[i] = ak;
                    }
                    for (int j = 0; j < DV; j++) dbeta += d[j] * dd[j], du[j] = -beta * dd[j];
                    dbeta /= beta > 1e-12f ? beta : 1e-12f; /* d = (v - u) * beta */
                    for (int i = 0; i < DK; i++) {
                        const float *before = saved[b] + i * DV;
                        float *g = dS + i * DV, ak = 0.0f, ae = 0.0f;
                        for (int j = 0; j < DV; j++) {
                            const float ds = g[j] + k[i] * du[j];
                            ak += before[j] * du[j];
                            ae += ds * before[j];
                            g[j] = e * ds;
                        }
                        dk[i] += e * ak, de += ae;
                    }
                    /* g = -rate * softplus(a + dt), e = exp(g) */
                    const float dg = de * e, a = gates[H + h] + dt[h];
                    float *dgates = dproj + at * R + channels + H * DV;
                    dgates[h] = dbeta * beta * (1.0f - beta);
                    dgates[H + h] = -dg * rate[h] * sigmoid(a);
                    ddt[h] += dgates[H + h];
                    drate[h] -= dg * softplus(a);
                    /* act becomes its own gradient: nobody reads it again. Keys and queries of this head are done here. */
                    float xq[DK], xk[DK];
                    memcpy(xq, yq, sizeof xq), memcpy(xk, yk, sizeof xk);
                    normalise_back(xq, NQ[b], scale, dq, yq);
                    normalise_back(xk, NK[b], 1.0f, dk, yk);
                    for (int j = 0; j < DV; j++) v[j] = beta * dd[j];
                }
            }
        }
        for (int t = 0; t < T; t++) { /* SiLU and convolution. Upwards: a row is set before it is added to. */
            const long at = (long)n * T + t;
            const float *p = pre + at * channels;
            float *g = act + at * channels;
            for (int c = 0; c < channels; c++) {
                const float s = 1.0f / (1.0f + expf(-p[c]));
                g[c] *= s * (1.0f + p[c] * (1.0f - s));
            }
            for (int j = 0; j < W; j++) {
                const int source = t - (W - 1 - j);
                if (source < 0) continue;
                const float *x = proj + ((long)n * T + source) * R;
                float *dx = dproj + ((long)n * T + source) * R, *dwj = dw + (long)j * channels;
                const float *wj = w + (long)j * channels;
                if (j == W - 1)
                    for (int c = 0; c < channels; c++) dx[c] = g[c] * wj[c], dwj[c] += g[c] * x[c];
                else
                    for (int c = 0; c < channels; c++) dx[c] += g[c] * wj[c], dwj[c] += g[c] * x[c];
            }
        }
    }
}

/* y = o / rms(o) * weight * silu(z), per head. o, y: [tokens][heads][DV]; z inside the projection. */
void gate_forward(const Dims *dims, const float *proj, const float *o, const float *weight, float eps, float *y) {
    const int H = dims->heads, R = dims->stride;
    for (long at = 0; at < (long)dims->batch * dims->length; at++)
        for (int h = 0; h < H; h++) {
            const float *z = proj + at * R + 2 * H * DK + (H + h) * DV, *x = o + (at * H + h) * DV;
            float s = 0.0f, *out = y + (at * H + h) * DV;
            for (int j = 0; j < DV; j++) s += x[j] * x[j];
            s = 1.0f / sqrtf(s / DV + eps);
            for (int j = 0; j < DV; j++) out[j] = x[j] * s * weight[j] * z[j] / (1.0f + expf(-z[j]));
        }
}

/* dy -> dgo (gradient of o), the z columns of dproj, and dweight (added to). */
void gate_backward(const Dims *dims, const float *proj, const float *o, const float *weight, float eps, const float *dy,
                   float *dgo, float *dproj, float *dweight) {
    const int H = dims->heads, R = dims->stride;
    for (long at = 0; at < (long)dims->batch * dims->length; at++)
        for (int h = 0; h < H; h++) {
            const long column = at * R + 2 * H * DK + (H + h) * DV, row = (at * H + h) * DV;
            const float *z = proj + column, *x = o + row, *g = dy + row;
            float s = 0.0f, dot = 0.0f, dn[DV];
            for (int j = 0; j < DV; j++) s += x[j] * x[j];
            s = 1.0f / sqrtf(s / DV + eps);
            for (int j = 0; j < DV; j++) {
                const float sg = 1.0f / (1.0f + expf(-z[j])), n = x[j] * s;
                dproj[column + j] = g[j] * n * weight[j] * sg * (1.0f + z[j] * (1.0f - sg));
                dn[j] = g[j] * z[j] * sg;
                dweight[j] += dn[j] * n;
                dn[j] *= weight[j];
                dot += dn[j] * n;
            }
            dot /= DV;
            for (int j = 0; j < DV; j++) dgo[row + j] = (dn[j] - x[j] * s * dot) * s;
        }
}

/* out = silu(gate) * up, rows of gate | up. */
void swiglu_forward(long rows, int width, const float *x, float *out) {
    for (long r = 0; r < rows; r++) {
        const float *gate = x + r * 2 * width, *up = gate + width;
        for (int i = 0; i < width; i++) out[r * width + i] = gate[i] * up[i] / (1.0f + expf(-gate[i]));
    }
}

void swiglu_backward(long rows, int width, const float *x, const float *dout, float *dx) {
    for (long r = 0; r < rows; r++) {
        const float *gate = x + r * 2 * width, *up = gate + width, *g = dout + r * width;
        float *dgate = dx + r * 2 * width, *dup = dgate + width;
        for (int i = 0; i < width; i++) {
            const float s = 1.0f / (1.0f + expf(-gate[i]));
            dup[i] = g[i] * gate[i] * s;
            dgate[i] = g[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
        }
    }
}
