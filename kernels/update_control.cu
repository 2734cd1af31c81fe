// Everything about an optimizer step that changes from step to step, from device memory to device memory: see
// ops/update_control.py for the formulas. One thread; its worth is that no step waits for the host. All in double: the
// corrections 1 - beta^t lose their digits in float, and pow runs twice a step.
#include "update_control.cuh"

constexpr float LARGEST_LOSS_SCALE = 16777216.0f;  // 2^24; only gradients that are all 0 ever lead there

// loss_scale: (scale, good steps since it changed, skipped steps at the floor).
__device__ void adapt_loss_scale(float* loss_scale, bool apply, long long growth_interval, float floor) {
    const float scale = loss_scale[0], good = loss_scale[1] + 1.0f;
    if (apply) {
        const bool grow = good >= (float)growth_interval;
        loss_scale[0] = grow ? fminf(2.0f * scale, LARGEST_LOSS_SCALE) : scale;
        loss_scale[1] = grow ? 0.0f : good;
        loss_scale[2] = 0.0f;
    } else {
        loss_scale[0] = fmaxf(0.5f * scale, floor);
        loss_scale[1] = 0.0f;
        if (scale <= floor) loss_scale[2] += 1.0f;
    }
}

// mu_t of NAdam.
__device__ double momentum_at(double beta1, double momentum_decay, double t) {
    return beta1 * (1.0 - 0.5 * pow(0.96, t * momentum_decay));
}

// RAdam's factor of update t, 0 while the second moment rests on too few gradients. correction2: 1 - beta2^t.
__device__ double rectification(double beta2, double correction2, double t) {
    const double longest = 2.0 / (1.0 - beta2) - 1.0, length = longest - 2.0 * t * (1.0 - correction2) / correction2;
    if (length <= 5.0) return 0.0;
    return sqrt((length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length));
}

// A row of control: what a group has of its own. product: of its mu so far, or null.
__device__ void group_control(
    float* control, double beta1, double beta2, double momentum_decay, bool maximize, double* product, bool apply,
    double scale, double limit, float rate, double t, int rectify
) {
    const double correction2 = 1.0 - pow(beta2, t);
    double correction1 = 1.0 - pow(beta1, t), extra = rectify ? rectification(beta2, correction2, t) : 0.0;
    if (product && apply) {
        const double mu = momentum_at(beta1, momentum_decay, t), next = momentum_at(beta1, momentum_decay, t + 1.0);
        product[0] *= mu;
        correction1 = (1.0 - product[0]) / (1.0 - mu);
        extra = next / (1.0 - product[0] * next);
    }
    control[0] = apply;
    control[1] = apply ? (float)(maximize ? -scale : scale) : 0.0f;
    control[2] = apply ? (float)limit : 0.0f;
    control[3] = apply ? rate : 0.0f;
    control[4] = apply ? (float)correction1 : 0.0f;
    control[5] = apply ? (float)correction2 : 0.0f;
    control[6] = apply ? (float)t : 0.0f;
    control[7] = apply ? (float)extra : 0.0f;
}

// control: (1 + group_count, 8). counters: (2,), applied and skipped. outcome: (8,). loss_scale: (3,) or null. product: one
// for each row of control, of the mu so far, for NAdam, else null. totals, clipped_totals: (parts,), the second may be null.
// count: (1,). rates: (rate_count,). error: the note of report_error, or null. loss: (1,), the sum of the losses, or null.
// groups: (group_count, 4), beta1, beta2, momentum_decay and maximize of all rows but the first, or null. A limit that is not
// set is infinite.
extern "C" __global__ void update_control(
    float* control, long long* counters, double* outcome, float* loss_scale, double* product,
    const double* totals, const double* clipped_totals, const double* count, const float* rates, const long long* error,
    const double* loss, const double* groups,
    double clip_norm, double clip_value, double beta1, double beta2, double largest, long long growth_interval, float floor,
    double momentum_decay, int rectify, int maximize, int parts, long long rate_count, int group_count
) {
    if (blockIdx.x || threadIdx.x) return;
    double total = 0.0, clipped = 0.0;
    for (int i = 0; i < parts; ++i) {
        total += totals[i];
        if (clipped_totals) clipped += clipped_totals[i];
    }
    const double counted = count[0] == 0.0 ? 1.0 : count[0];
    const double divisor = counted * (loss_scale ? (double)loss_scale[0] : 1.0);
    const double before = sqrt(total) / divisor, left = clipped_totals ? sqrt(clipped) / divisor : before;
    const bool finite = before >= 0.0 && before < (double)__int_as_float(0x7f800000) && left >= 0.0;
    // loss - loss is 0, or NaN where loss is infinite or NaN
    const bool spoilt = (error && error[0]) || (loss && loss[0] - loss[0] != 0.0);
    const bool apply = finite && !spoilt && fmin(fmin(left, clip_norm), clip_value) <= largest;
    const double factor = left > clip_norm ? clip_norm / left : 1.0;
    const long long applied = counters[0];
    const float rate = rates[applied < rate_count ? applied : rate_count - 1];
    for (int k = 0; k <= group_count; ++k) {
        if (k) beta1 = groups[4 * k - 4], beta2 = groups[4 * k - 3], momentum_decay = groups[4 * k - 2];
        group_control(
            control + 8 * k, beta1, beta2, momentum_decay, k ? groups[4 * k - 1] != 0.0 : maximize != 0,
            product ? product + k : nullptr, apply, factor / divisor, factor * clip_value, rate, (double)(applied + 1), rectify
        );
    }
    counters[apply ? 0 : 1] += 1;
    if (loss_scale && !spoilt) adapt_loss_scale(loss_scale, apply, growth_interval, floor);

    outcome[0] = before;
    outcome[1] = (loss ? loss[0] : (double)__int_as_float(0x7fc00000)) / counted;
    outcome[2] = apply;
    outcome[3] = (double)counters[0];
    outcome[4] = (double)counters[1];
    outcome[5] = loss_scale ? (double)loss_scale[0] : 1.0;
    outcome[6] = loss_scale ? (double)loss_scale[2] : 0.0;
    outcome[7] = error ? (double)error[0] : 0.0;
}
