// Which orders between threads racecheck of compute-sanitizer knows: kernels whose accesses to shared memory are ordered.
//
// Warp groups hand elements over as the kernels of latent attention do. Each number is a kernel of its own:
//
//     nvcc -arch=sm_90a -o racecheck benchmarks/racecheck.cu
//     for i in 0 1 2 3 4 5 6 7 8 9; do compute-sanitizer --tool racecheck --racecheck-report analysis ./racecheck $i; done
//
// Results are compared with the right ones, and the order does not rest on how warps happen to run: `__syncwarp` and
// mbarrier.arrive.release, mbarrier.try_wait.acquire, and barriers are the orders that PTX defines.

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int GROUP = 128, WARP = 32, ROUNDS = 6;

__device__ uint32_t address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ void start(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals) : "memory");
}

__device__ void arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

__device__ void await(uint64_t *barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(address(barrier)), "r"(parity) : "memory");
}

__device__ void arrive_for_warp(uint64_t *barrier) {
    __syncwarp();  // orders what all lanes have read or written before the arrival of one
    if (threadIdx.x % WARP == 0) arrive(barrier);
}

__device__ void meet(int threads) { asm volatile("barrier.sync 3, %0;" ::"r"(threads) : "memory"); }

// One warp group writes, the other reads, over an mbarrier for either direction.
template <bool EVERY_LANE>
__global__ void over_mbarriers(const float *x, float *out) {
    __shared__ float data[GROUP];
    __shared__ uint64_t full, empty;
    const int thread = threadIdx.x, within = thread % GROUP, arrivals = EVERY_LANE ? GROUP : GROUP / WARP;
    if (thread == 0) {
        start(&full, arrivals);
        start(&empty, arrivals);
    }
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < ROUNDS; i++) {
        if (thread < GROUP) {
            if (i > 0) await(&empty, (i - 1) & 1);
            data[within] = x[within] + i;
        } else {
            await(&full, i & 1);
            sum += data[(within + 37) % GROUP];
        }
        uint64_t *barrier = thread < GROUP ? &full : &empty;
        if (EVERY_LANE) arrive(barrier); else arrive_for_warp(barrier);
    }
    if (thread >= GROUP) out[(within + 37) % GROUP] = sum;
}

// Two warp groups write, meet at a named barrier and read. In the next round they write to other elements, so one barrier for
// each round is enough. A third warp group, if there is one, stays in the block. With `TURNS`, the second group also waits
// at another barrier where the first one only arrives.
template <bool ALL, bool TURNS>
__global__ void over_named_barriers(const float *x, float *out) {
    __shared__ float data[2][2 * GROUP];
    const int thread = threadIdx.x;
    if (thread < 2 * GROUP) {
        float sum = 0;
        for (int i = 0; i < ROUNDS; i++) {
            if (TURNS && thread < GROUP) asm volatile("barrier.arrive 4, 256;" ::: "memory");
            if (TURNS && thread >= GROUP) asm volatile("barrier.sync 4, 256;" ::: "memory");
            data[i % 2][thread] = x[thread % GROUP] + i;
            if (ALL) __syncthreads(); else meet(2 * GROUP);
            sum += data[i % 2][(thread + GROUP) % (2 * GROUP)];
        }
        if (thread < GROUP) out[thread] = sum;
    }
    __syncthreads();
}

// The same, but each warp group has code of its own with a barrier of its own in it, as in latent attention. With `ENDED`, a
// third warp group has ended by then.
template <bool ENDED>
__global__ void over_two_codes(const float *x, float *out) {
    __shared__ float data[2][2 * GROUP];
    const int thread = threadIdx.x, within = thread % GROUP;
    float sum = 0;
    if (thread < GROUP) {
        for (int i = 0; i < ROUNDS; i++) {
            data[i % 2][within] = x[within] + i;
            meet(2 * GROUP);
            sum += data[i % 2][GROUP + within];
        }
        out[within] = sum;
    } else if (thread < 2 * GROUP) {
        for (int i = 0; i < ROUNDS; i++) {
            data[i % 2][GROUP + within] = i + x[within];
            meet(2 * GROUP);
            sum -= data[i % 2][within];
        }
        if (sum > 0) out[within] = sum;
    }
    if (!ENDED) __syncthreads();
}

// One warp group writes, the other reads. At each of two barriers one group arrives and the other waits.
__global__ void over_arrivals(const float *x, float *out) {
    __shared__ float data[GROUP];
    const int thread = threadIdx.x, within = thread % GROUP;
    float sum = 0;
    for (int i = 0; i < ROUNDS; i++) {
        if (thread < GROUP) {
            if (i > 0) asm volatile("barrier.sync 2, 256;" ::: "memory");
            data[within] = x[within] + i;
            asm volatile("barrier.arrive 1, 256;" ::: "memory");
        } else {
            asm volatile("barrier.sync 1, 256;" ::: "memory");
            sum += data[(within + 37) % GROUP];
            if (i + 1 < ROUNDS) asm volatile("barrier.arrive 2, 256;" ::: "memory");
        }
    }
    if (thread >= GROUP) out[(within + 37) % GROUP] = sum;
}

int main(int, char **given) {
    float *x, *out, host[GROUP];
    cudaMalloc(&x, sizeof host);
    cudaMalloc(&out, sizeof host);
    for (int i = 0; i < GROUP; i++) host[i] = static_cast<float>(i);
    cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
    const char *name = "";
    switch (atoi(given[1])) {
        case 0: name = "mbarriers, a lane arrives for its warp"; over_mbarriers<false><<<1, 2 * GROUP>>>(x, out); break;
        case 1: name = "mbarriers, every lane arrives"; over_mbarriers<true><<<1, 2 * GROUP>>>(x, out); break;
        case 2: name = "barrier of the block"; over_named_barriers<true, false><<<1, 2 * GROUP>>>(x, out); break;
        case 3: name = "named barrier of all threads"; over_named_barriers<false, false><<<1, 2 * GROUP>>>(x, out); break;
        case 4: name = "named barrier of two groups of three"; over_named_barriers<false, false><<<1, 3 * GROUP>>>(x, out); break;
        case 5: name = "the same, and arrivals"; over_named_barriers<false, true><<<1, 3 * GROUP>>>(x, out); break;
        case 6: name = "the same of all threads, and arrivals"; over_named_barriers<false, true><<<1, 2 * GROUP>>>(x, out); break;
        case 7: name = "named barriers, one arrives and one waits"; over_arrivals<<<1, 2 * GROUP>>>(x, out); break;
        case 8: name = "named barrier of two groups of three, in two codes"; over_two_codes<false><<<1, 3 * GROUP>>>(x, out); break;
        case 9: name = "the same, and the third group has ended"; over_two_codes<true><<<1, 3 * GROUP>>>(x, out); break;
    }
    const cudaError_t error = cudaDeviceSynchronize();
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (int i = 0; i < GROUP; i++) wrong += host[i] != ROUNDS * i + ROUNDS * (ROUNDS - 1) / 2;
    printf("%s: %s, %d wrong\n", name, cudaGetErrorString(error), wrong);
    return wrong != 0 || error != cudaSuccess;
}
